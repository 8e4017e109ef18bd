#include "server/rpc/payload_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gdpcache/v1/snapshot.pb.h"
#include "server/rpc/lent_slice.h"
#include "server/rpc/message_memory.h"

namespace gdpcache::rpc {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

constexpr std::uint32_t kHeaderTag =
    Wire::MakeTag(v1::WriteSnapshotRequest::kHeaderFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED);
constexpr std::uint32_t kPayloadTag =
    Wire::MakeTag(v1::WriteSnapshotRequest::kPayloadFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED);

/// Below it a copy costs less than keeping account of the memory.
constexpr std::size_t kMinLentBytes = 4'096;

absl::Status Malformed() { return absl::InvalidArgumentError("the message is not what the protocol says"); }

bool ReadFrame(CodedInputStream& input, google::protobuf::MessageLite& header, PayloadFrame& frame) {
  while (const std::uint32_t tag = input.ReadTag()) {
    int size = 0;
    if (tag == kHeaderTag) {
      if (frame.kind != PayloadFrame::Kind::kHeader) header.Clear();
      frame = {.kind = PayloadFrame::Kind::kHeader};
      if (!input.ReadVarintSizeAsInt(&size)) return false;
      const auto limit = input.PushLimit(size);
      if (!header.MergePartialFromCodedStream(&input) || !input.ConsumedEntireMessage()) return false;
      if (input.BytesUntilLimit() != 0) return false;
      input.PopLimit(limit);
    } else if (tag == kPayloadTag) {
      if (!input.ReadVarintSizeAsInt(&size)) return false;
      frame = {.kind = PayloadFrame::Kind::kPayload, .position = input.CurrentPosition(), .size = size};
      if (!input.Skip(size)) return false;
    } else if (!Wire::SkipField(&input, tag)) {
      return false;
    }
  }
  return input.ConsumedEntireMessage();
}

}  // namespace

grpc::ByteBuffer EncodePayload(const google::protobuf::MessageLite& fields, int payload_field,
                               absl::Span<const kernels::ByteRange> ranges, const std::shared_ptr<const void>& owner) {
  std::size_t size = 0;
  for (const kernels::ByteRange& range : ranges) size += range.size;
  std::string copied = fields.SerializeAsString();  // what goes into the next slice
  {
    google::protobuf::io::StringOutputStream stream(&copied);
    CodedOutputStream out(&stream);
    out.WriteTag(Wire::MakeTag(payload_field, Wire::WIRETYPE_LENGTH_DELIMITED));
    out.WriteVarint64(size);
  }
  std::vector<grpc::Slice> slices;
  for (const kernels::ByteRange& range : ranges) {
    if (range.size < kMinLentBytes) {
      copied.append(static_cast<const char*>(range.data), range.size);
      continue;
    }
    if (!copied.empty()) slices.emplace_back(copied);
    copied.clear();
    slices.push_back(LendSlice(range.data, range.size, owner));
  }
  if (!copied.empty()) slices.emplace_back(copied);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<PayloadFrame> ParsePayloadFrame(grpc::ByteBuffer& bytes, google::protobuf::Message& header) {
  if (absl::Status status =
          CheckObjectsOfFrame(bytes, *header.GetDescriptor(), v1::WriteSnapshotRequest::kHeaderFieldNumber);
      !status.ok()) {
    return status;
  }
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok()) return Malformed();
  PayloadFrame frame;
  CodedInputStream input(&reader);
  if (!ReadFrame(input, header, frame)) return Malformed();
  return frame;
}

absl::Status ReadPayload(grpc::ByteBuffer& bytes, const PayloadFrame& frame,
                         absl::FunctionRef<absl::Status(absl::Span<const std::byte>)> take) {
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok()) return Malformed();
  if (frame.position > 0 && !reader.Skip(static_cast<int>(frame.position))) return Malformed();
  std::int64_t left = frame.size;
  while (left > 0) {
    const void* chunk = nullptr;
    int available = 0;
    if (!reader.Next(&chunk, &available)) return Malformed();
    const std::int64_t taken = std::min<std::int64_t>(left, available);
    if (absl::Status status = take({static_cast<const std::byte*>(chunk), static_cast<std::size_t>(taken)});
        !status.ok()) {
      return status;
    }
    left -= taken;
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::rpc
