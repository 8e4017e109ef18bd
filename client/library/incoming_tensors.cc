#include "client/library/incoming_tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/library/convert.h"
#include "client/library/status_conversion.h"
#include "gdpcache/v1/prefill.pb.h"
#include "gdpcache/v1/session.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace gdpcache::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kDataField = v1::PrefillFrame::kDataFieldNumber;
static_assert(kDataField == v1::ReadSlotsFrame::kDataFieldNumber);

constexpr std::uint32_t kFrameTag = WireFormatLite::MakeTag(kDataField, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr std::uint32_t kTensorTag =
    WireFormatLite::MakeTag(v1::TensorData::kTensorFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr std::uint32_t kOffsetTag =
    WireFormatLite::MakeTag(v1::TensorData::kOffsetFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr std::uint32_t kPayloadTag =
    WireFormatLite::MakeTag(v1::TensorData::kPayloadFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

/// The fields in front of a payload.
struct DataHeader {
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;
  std::uint32_t size = 0;
};

/// Reads up to the payload of a frame in the usual order, with the payload last. False for any other frame.
bool ReadDataHeader(CodedInputStream& in, std::uint64_t frame_size, DataHeader* header) {
  std::uint32_t data_size = 0;
  if (in.ReadTag() != kFrameTag || !in.ReadVarint32(&data_size)) return false;
  if (static_cast<std::uint64_t>(in.CurrentPosition()) + data_size != frame_size) return false;
  if (in.ReadTag() != kTensorTag || !in.ReadVarint32(&header->tensor)) return false;
  std::uint32_t tag = in.ReadTag();
  if (tag == kOffsetTag) {  // left out when zero
    if (!in.ReadVarint64(&header->offset)) return false;
    tag = in.ReadTag();
  }
  if (tag != kPayloadTag || !in.ReadVarint32(&header->size)) return false;
  return static_cast<std::uint64_t>(in.CurrentPosition()) + header->size == frame_size;
}

std::string Shape(absl::Span<const std::int64_t> shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

}  // namespace

void IncomingTensors::Expect(v1::TensorId id, std::string name, DataType dtype, std::vector<std::int64_t> shape,
                             std::byte* destination, std::int64_t size) {
  tensors_.push_back({id, std::move(name), dtype, std::move(shape), destination, size});
}

const IncomingTensors::Expected* IncomingTensors::Find(v1::TensorId id) const {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(), [id](const Expected& tensor) { return tensor.id == id; });
  return found == tensors_.end() ? nullptr : &*found;
}

absl::StatusOr<std::byte*> IncomingTensors::Claim(v1::TensorId id, std::uint64_t offset, std::uint64_t size) {
  auto* tensor = const_cast<Expected*>(Find(id));
  if (tensor == nullptr) {
    return ProtocolError(absl::StrCat("it sent data of tensor ", static_cast<int>(id), ", which was not asked for"));
  }
  if (offset != static_cast<std::uint64_t>(tensor->received)) {
    return ProtocolError(
        absl::StrCat("data of ", tensor->name, " at offset ", offset, " instead of ", tensor->received));
  }
  if (size > static_cast<std::uint64_t>(tensor->size - tensor->received)) {
    return ProtocolError(absl::StrCat(tensor->name, " has ", tensor->size, " bytes and ", size,
                                      " more were sent after the first ", tensor->received));
  }
  std::byte* destination = tensor->destination + tensor->received;
  tensor->received += static_cast<std::int64_t>(size);
  return destination;
}

void IncomingTensors::Complete(v1::TensorId id) {
  for (Expected& tensor : tensors_) {
    if (tensor.id == id) tensor.received = tensor.size;
  }
}

absl::Status IncomingTensors::CheckHeader(v1::TensorId id, bool present, const v1::Tensor& header) const {
  const Expected* tensor = Find(id);
  if (tensor == nullptr) {
    if (!present) return absl::OkStatus();
    return ProtocolError(absl::StrCat("it answered with tensor ", static_cast<int>(id), ", which was not asked for"));
  }
  if (!present) return ProtocolError(absl::StrCat("its answer has no ", tensor->name));
  if (header.dtype() != ToProto(tensor->dtype)) {
    return ProtocolError(absl::StrCat(tensor->name, " is of data type ", static_cast<int>(header.dtype()),
                                      " instead of ", static_cast<int>(ToProto(tensor->dtype))));
  }
  if (!std::equal(header.shape().begin(), header.shape().end(), tensor->shape.begin(), tensor->shape.end())) {
    return ProtocolError(
        absl::StrCat(tensor->name, " has the shape ", Shape(header.shape()), " instead of ", Shape(tensor->shape)));
  }
  return absl::OkStatus();
}

absl::Status IncomingTensors::CheckComplete() const {
  for (const Expected& tensor : tensors_) {
    if (tensor.received != tensor.size) {
      return ProtocolError(
          absl::StrCat("only ", tensor.received, " of the ", tensor.size, " bytes of ", tensor.name, " came"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TakeDataFrame(grpc::ByteBuffer& frame, IncomingTensors& tensors) {
  grpc::ProtoBufferReader reader(&frame);
  CodedInputStream in(&reader);
  DataHeader header;
  if (!ReadDataHeader(in, frame.Length(), &header)) return false;
  const absl::StatusOr<std::byte*> destination =
      tensors.Claim(static_cast<v1::TensorId>(header.tensor), header.offset, header.size);
  if (!destination.ok()) return destination.status();
  // Cannot fall short: the header's sizes add up to the frame's.
  if (!in.ReadRaw(*destination, static_cast<int>(header.size))) return ProtocolError("a frame cannot be read");
  return true;
}

absl::Status TakeData(const v1::TensorData& data, IncomingTensors& tensors) {
  const absl::StatusOr<std::byte*> destination = tensors.Claim(data.tensor(), data.offset(), data.payload().size());
  if (!destination.ok()) return destination.status();
  if (!data.payload().empty()) std::memcpy(*destination, data.payload().data(), data.payload().size());
  return absl::OkStatus();
}

absl::Status ParseMessage(grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message) {
  grpc::ProtoBufferReader reader(&buffer);
  if (!message->ParseFromZeroCopyStream(&reader)) {
    return ProtocolError(absl::StrCat("a message of ", buffer.Length(), " bytes is no ", message->GetTypeName()));
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::client
