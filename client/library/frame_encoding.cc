#include "client/library/frame_encoding.h"

#include <string>

#include "gdpcache/v1/prefill.pb.h"
#include "gdpcache/v1/session.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/slice.h"

namespace gdpcache::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

constexpr int kDataField = v1::PrefillFrame::kDataFieldNumber;
static_assert(kDataField == v1::WriteSlotsFrame::kDataFieldNumber);

constexpr std::uint32_t VarintTag(int field) { return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_VARINT); }
constexpr std::uint32_t BytesTag(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

void AppendVarint(std::uint64_t value, std::string* out) {
  std::uint8_t bytes[10];
  const std::uint8_t* end = CodedOutputStream::WriteVarint64ToArray(value, bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(end - bytes));
}

}  // namespace

grpc::ByteBuffer EncodeDataFrame(const Piece& piece, BorrowedMemory& memory) {
  std::string data;  // the TensorData message up to its payload
  AppendVarint(VarintTag(v1::TensorData::kTensorFieldNumber), &data);
  AppendVarint(static_cast<std::uint64_t>(piece.tensor), &data);
  AppendVarint(VarintTag(v1::TensorData::kOffsetFieldNumber), &data);
  AppendVarint(static_cast<std::uint64_t>(piece.offset), &data);
  AppendVarint(BytesTag(v1::TensorData::kPayloadFieldNumber), &data);
  AppendVarint(static_cast<std::uint64_t>(piece.size), &data);

  std::string header;
  AppendVarint(BytesTag(kDataField), &header);
  AppendVarint(data.size() + static_cast<std::uint64_t>(piece.size), &header);
  header += data;
  const grpc::Slice slices[] = {grpc::Slice(header), memory.Lend(piece.data, static_cast<std::size_t>(piece.size))};
  return grpc::ByteBuffer(slices, 2);
}

grpc::ByteBuffer EncodeWithTensors(const google::protobuf::MessageLite& message,
                                   const std::vector<InlineTensor>& tensors, BorrowedMemory& memory) {
  std::vector<grpc::Slice> slices;
  std::string header = message.SerializeAsString();
  for (const InlineTensor& tensor : tensors) {
    std::string body = tensor.header.SerializeAsString();
    AppendVarint(BytesTag(v1::Tensor::kInlineFieldNumber), &body);
    AppendVarint(static_cast<std::uint64_t>(tensor.size), &body);
    AppendVarint(BytesTag(tensor.field_number), &header);
    AppendVarint(body.size() + static_cast<std::uint64_t>(tensor.size), &header);
    header += body;
    slices.emplace_back(header);
    header.clear();
    if (tensor.size > 0) slices.push_back(memory.Lend(tensor.data, static_cast<std::size_t>(tensor.size)));
  }
  if (slices.empty()) slices.emplace_back(header);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer EncodeMessage(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace gdpcache::client
