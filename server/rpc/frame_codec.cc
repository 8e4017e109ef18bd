#include "server/rpc/frame_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gdpcache/v1/tensor.pb.h"
#include "server/cache/errors.h"
#include "server/rpc/lent_slice.h"
#include "server/rpc/message_memory.h"

namespace gdpcache::rpc {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

// Field numbers that the three frame messages and TensorData share; frame_codec_test checks them against the contract.
constexpr int kHeaderField = 1;
constexpr int kDataField = 2;
constexpr int kTensorField = 1;
constexpr int kOffsetField = 2;
constexpr int kPayloadField = 3;

constexpr std::uint32_t kHeaderTag = Wire::MakeTag(kHeaderField, Wire::WIRETYPE_LENGTH_DELIMITED);
constexpr std::uint32_t kDataTag = Wire::MakeTag(kDataField, Wire::WIRETYPE_LENGTH_DELIMITED);
constexpr std::uint32_t kTensorTag = Wire::MakeTag(kTensorField, Wire::WIRETYPE_VARINT);
constexpr std::uint32_t kOffsetTag = Wire::MakeTag(kOffsetField, Wire::WIRETYPE_VARINT);
constexpr std::uint32_t kPayloadTag = Wire::MakeTag(kPayloadField, Wire::WIRETYPE_LENGTH_DELIMITED);

constexpr std::array<std::pair<v1::TensorId, engine::StreamTensor>, 10> kTensors = {{
    {v1::TENSOR_ID_K, engine::StreamTensor::kK},
    {v1::TENSOR_ID_W, engine::StreamTensor::kW},
    {v1::TENSOR_ID_U, engine::StreamTensor::kU},
    {v1::TENSOR_ID_G, engine::StreamTensor::kG},
    {v1::TENSOR_ID_INITIAL_STATE, engine::StreamTensor::kInitialState},
    {v1::TENSOR_ID_H, engine::StreamTensor::kH},
    {v1::TENSOR_ID_V_NEW, engine::StreamTensor::kVNew},
    {v1::TENSOR_ID_FINAL_STATE, engine::StreamTensor::kFinalState},
    {v1::TENSOR_ID_STATE, engine::StreamTensor::kState},
    {v1::TENSOR_ID_AUXILIARY, engine::StreamTensor::kAuxiliary},
}};

std::optional<engine::StreamTensor> TensorOf(std::int32_t id) {
  for (const auto& [known, tensor] : kTensors) {
    if (known == id) return tensor;
  }
  return std::nullopt;
}

v1::TensorId IdOf(engine::StreamTensor tensor) {
  for (const auto& [id, known] : kTensors) {
    if (known == tensor) return id;
  }
  return v1::TENSOR_ID_UNSPECIFIED;
}

absl::Status Malformed() { return absl::InvalidArgumentError("the message is not what the protocol says"); }

/// Reads the TensorData that ends at the stream's limit.
bool ReadData(CodedInputStream& input, ParsedFrame& frame) {
  while (const std::uint32_t tag = input.ReadTag()) {
    switch (tag) {
      case kTensorTag: {
        std::uint64_t value = 0;
        if (!input.ReadVarint64(&value)) return false;
        frame.tensor = static_cast<std::int32_t>(value);
        break;
      }
      case kOffsetTag: {
        std::uint64_t value = 0;
        if (!input.ReadVarint64(&value)) return false;
        frame.offset = value;
        break;
      }
      case kPayloadTag: {
        int size = 0;
        if (!input.ReadVarintSizeAsInt(&size)) return false;
        frame.payload_position = input.CurrentPosition();
        frame.payload_size = size;
        if (size > input.BytesUntilLimit() || !input.Skip(size)) return false;
        break;
      }
      default:
        if (!Wire::SkipField(&input, tag)) return false;
    }
  }
  return input.ConsumedEntireMessage();
}

bool ReadFrame(CodedInputStream& input, google::protobuf::MessageLite& header, ParsedFrame& frame) {
  while (const std::uint32_t tag = input.ReadTag()) {
    if (tag != kHeaderTag && tag != kDataTag) {
      // The other members of the oneof count as nothing that the receiver takes.
      if (Wire::GetTagFieldNumber(tag) == kDataField + 1) frame = {};
      if (!Wire::SkipField(&input, tag)) return false;
      continue;
    }
    const ParsedFrame::Kind kind = tag == kHeaderTag ? ParsedFrame::Kind::kHeader : ParsedFrame::Kind::kData;
    if (frame.kind != kind) {
      frame = {.kind = kind};
      header.Clear();
    }
    int size = 0;
    if (!input.ReadVarintSizeAsInt(&size)) return false;
    const auto limit = input.PushLimit(size);
    const bool read = kind == ParsedFrame::Kind::kData
                          ? ReadData(input, frame)
                          : header.MergePartialFromCodedStream(&input) && input.ConsumedEntireMessage();
    if (!read || input.BytesUntilLimit() != 0) return false;
    input.PopLimit(limit);
  }
  return input.ConsumedEntireMessage();
}

}  // namespace

absl::StatusOr<ParsedFrame> ParseFrame(grpc::ByteBuffer& bytes, google::protobuf::Message& header) {
  if (absl::Status status = CheckObjectsOfFrame(bytes, *header.GetDescriptor(), kHeaderField); !status.ok()) {
    return status;
  }
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok()) return Malformed();
  ParsedFrame frame;
  CodedInputStream input(&reader);
  if (!ReadFrame(input, header, frame)) return Malformed();
  return frame;
}

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  if (absl::Status status = CheckObjects(bytes, *message.GetDescriptor()); !status.ok()) return status;
  grpc::ByteBuffer shared = bytes;  // shares the slices
  grpc::ProtoBufferReader reader(&shared);
  if (!reader.status().ok() || !message.ParseFromZeroCopyStream(&reader)) return Malformed();
  return absl::OkStatus();
}

absl::Status DeliverPayload(grpc::ByteBuffer& bytes, const ParsedFrame& frame, engine::StreamedInput& input) {
  const std::optional<engine::StreamTensor> tensor = TensorOf(frame.tensor);
  if (!tensor.has_value()) {
    return cache::InvalidField("data.tensor", absl::StrCat("is ", frame.tensor, "; there is no such tensor"));
  }
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok()) return Malformed();
  if (frame.payload_position > 0 && !reader.Skip(static_cast<int>(frame.payload_position))) return Malformed();
  std::int64_t copied = 0;
  const void* chunk = nullptr;
  int available = 0;
  do {
    const absl::StatusOr<absl::Span<std::byte>> place =
        input.Place(*tensor, frame.offset + copied, frame.payload_size - copied);
    if (!place.ok()) return place.status();
    std::size_t filled = 0;
    while (filled < place->size()) {
      if (available == 0 && !reader.Next(&chunk, &available)) return Malformed();
      const std::size_t take = std::min<std::size_t>(available, place->size() - filled);
      std::memcpy(place->data() + filled, chunk, take);
      filled += take;
      chunk = static_cast<const std::byte*>(chunk) + take;
      available -= static_cast<int>(take);
    }
    input.Placed(filled);
    copied += static_cast<std::int64_t>(filled);
  } while (copied < frame.payload_size);
  return absl::OkStatus();
}

absl::Status DeliverFrame(grpc::ByteBuffer& bytes, google::protobuf::Message& header, engine::StreamedInput& input) {
  const absl::StatusOr<ParsedFrame> frame = ParseFrame(bytes, header);
  if (!frame.ok()) return frame.status();
  if (frame->kind != ParsedFrame::Kind::kData) {
    return absl::InvalidArgumentError("a frame behind the first holds no data");
  }
  return DeliverPayload(bytes, *frame, input);
}

grpc::ByteBuffer EncodeData(engine::StreamTensor tensor, std::int64_t offset, const std::byte* data, std::int64_t size,
                            std::shared_ptr<const void> owner) {
  // Everything in front of the payload: the fields of TensorData, and before them its own tag and size in the frame.
  std::array<std::uint8_t, 48> fields;
  std::uint8_t* end = CodedOutputStream::WriteTagToArray(kTensorTag, fields.data());
  end = CodedOutputStream::WriteVarint32ToArray(IdOf(tensor), end);
  end = CodedOutputStream::WriteTagToArray(kOffsetTag, end);
  end = CodedOutputStream::WriteVarint64ToArray(static_cast<std::uint64_t>(offset), end);
  end = CodedOutputStream::WriteTagToArray(kPayloadTag, end);
  end = CodedOutputStream::WriteVarint64ToArray(static_cast<std::uint64_t>(size), end);
  const auto fields_size = static_cast<std::size_t>(end - fields.data());
  std::array<std::uint8_t, 64> head;
  end = CodedOutputStream::WriteTagToArray(kDataTag, head.data());
  end = CodedOutputStream::WriteVarint64ToArray(fields_size + static_cast<std::uint64_t>(size), end);
  std::memcpy(end, fields.data(), fields_size);
  end += fields_size;

  const std::array<grpc::Slice, 2> slices = {grpc::Slice(head.data(), static_cast<std::size_t>(end - head.data())),
                                             LendSlice(data, static_cast<std::size_t>(size), std::move(owner))};
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer EncodeMessage(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace gdpcache::rpc
