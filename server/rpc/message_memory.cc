#include "server/rpc/message_memory.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace gdpcache::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::CodedInputStream;
using Wire = google::protobuf::internal::WireFormatLite;

/// So short a message takes little, whatever it says: no byte becomes more than fifty.
constexpr std::size_t kShort = std::size_t{64} << 10;

constexpr std::int64_t kPointer = 8;
constexpr std::int64_t kScalar = 8;                  // the largest
constexpr std::int64_t kText = sizeof(std::string);  // an empty one, on the heap
constexpr std::int64_t kUnknown = 4 * kPointer;      // in a vector that grows twofold
constexpr std::int64_t kUnknownText = kUnknown + kText;
constexpr std::int64_t kUnknownGroup = kUnknown + 4 * kPointer;

/// Adds up what the objects of a message take, until it is too much or the bytes are no message.
class ObjectCounter {
 public:
  /// False when there is nothing more to count.
  bool Count(CodedInputStream& input, const Descriptor& type) {
    int groups = 0;  // that are open: what is in them is unknown, too
    while (const std::uint32_t tag = input.ReadTag()) {
      const FieldDescriptor* const field = groups > 0 ? nullptr : type.FindFieldByNumber(Wire::GetTagFieldNumber(tag));
      switch (Wire::GetTagWireType(tag)) {
        case Wire::WIRETYPE_START_GROUP:
          ++groups;
          bytes_ += kUnknownGroup;
          break;
        case Wire::WIRETYPE_END_GROUP:
          if (--groups < 0) return false;
          break;
        case Wire::WIRETYPE_LENGTH_DELIMITED:
          if (!CountDelimited(input, field)) return false;
          break;
        default:
          if (field == nullptr) {
            bytes_ += kUnknown;
          } else if (field->is_repeated()) {
            bytes_ += kScalar;
          }
          if (!Wire::SkipField(&input, tag)) return false;
      }
      if (bytes_ > kMaxObjectBytes) return false;
    }
    return input.ConsumedEntireMessage();
  }

  std::int64_t bytes() const { return bytes_; }

 private:
  bool CountDelimited(CodedInputStream& input, const FieldDescriptor* field) {
    int size = 0;
    if (!input.ReadVarintSizeAsInt(&size)) return false;
    if (field == nullptr) {
      bytes_ += kUnknownText;
      return input.Skip(size);
    }
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        bytes_ += SizeOf(*field->message_type());
        const auto limit = input.PushLimit(size);
        if (!Count(input, *field->message_type()) || input.BytesUntilLimit() != 0) return false;
        input.PopLimit(limit);
        return true;
      }
      case FieldDescriptor::CPPTYPE_STRING:
        bytes_ += kText + kPointer;
        return input.Skip(size);
      default:
        return CountPacked(input, *field, size);
    }
  }

  bool CountPacked(CodedInputStream& input, const FieldDescriptor& field, int size) {
    if (!field.is_repeated()) {
      bytes_ += kUnknownText;
      return input.Skip(size);
    }
    const auto type = static_cast<Wire::FieldType>(field.type());
    if (Wire::WireTypeForFieldType(type) != Wire::WIRETYPE_VARINT) {
      bytes_ += size;
      return input.Skip(size);
    }
    while (size > 0) {
      const void* data = nullptr;
      int available = 0;
      if (!input.GetDirectBufferPointer(&data, &available)) return false;
      const auto* const begin = static_cast<const unsigned char*>(data);
      const int taken = std::min(size, available);
      bytes_ += kScalar * std::count_if(begin, begin + taken, [](unsigned char byte) { return byte < 0x80; });
      if (!input.Skip(taken)) return false;
      size -= taken;
    }
    return true;
  }

  std::int64_t SizeOf(const Descriptor& type) {
    const auto [known, is_new] = sizes_.try_emplace(&type);
    if (is_new) {
      known->second =
          kPointer + static_cast<std::int64_t>(
                         google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->SpaceUsedLong());
    }
    return known->second;
  }

  std::int64_t bytes_ = 0;
  absl::flat_hash_map<const Descriptor*, std::int64_t> sizes_;
};

/// Judges bytes by what `count`, given them from the beginning, adds up.
template <typename Count>
absl::Status Check(const grpc::ByteBuffer& bytes, Count count) {
  if (bytes.Length() <= kShort) return absl::OkStatus();
  grpc::ByteBuffer shared = bytes;  // shares the slices
  grpc::ProtoBufferReader reader(&shared);
  if (!reader.status().ok()) return absl::OkStatus();
  CodedInputStream input(&reader);
  ObjectCounter counter;
  count(input, counter);
  if (counter.bytes() <= kMaxObjectBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the message of ", bytes.Length(),
                                                 " bytes has so many parts that they take ", counter.bytes(),
                                                 " bytes of memory or more; they may take ", kMaxObjectBytes));
}

}  // namespace

absl::Status CheckObjects(const grpc::ByteBuffer& bytes, const Descriptor& type) {
  return Check(bytes, [&type](CodedInputStream& input, ObjectCounter& counter) { counter.Count(input, type); });
}

absl::Status CheckObjectsOfFrame(const grpc::ByteBuffer& bytes, const Descriptor& type, int field) {
  return Check(bytes, [&type, field](CodedInputStream& input, ObjectCounter& counter) {
    while (const std::uint32_t tag = input.ReadTag()) {
      if (tag != Wire::MakeTag(field, Wire::WIRETYPE_LENGTH_DELIMITED)) {
        if (!Wire::SkipField(&input, tag)) break;
        continue;
      }
      int size = 0;
      if (!input.ReadVarintSizeAsInt(&size)) break;
      const auto limit = input.PushLimit(size);
      if (!counter.Count(input, type)) break;
      input.PopLimit(limit);
    }
  });
}

std::int64_t Trim(google::protobuf::Message& message) {
  message.DiscardUnknownFields();
  return static_cast<std::int64_t>(message.SpaceUsedLong());
}

}  // namespace gdpcache::rpc
