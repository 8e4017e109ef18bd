#include "server/rpc/frame_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gdpcache/v1/prefill.pb.h"
#include "gdpcache/v1/session.pb.h"
#include "server/rpc/frame_queue.h"

namespace gdpcache::rpc {
namespace {

using Kind = ParsedFrame::Kind;

/// `bytes` in slices of random sizes, empty ones among them.
grpc::ByteBuffer Sliced(absl::string_view bytes, std::mt19937_64& random) {
  std::vector<grpc::Slice> slices;
  while (!bytes.empty()) {
    const std::size_t size = std::min<std::size_t>(bytes.size(), random() % 40);
    slices.emplace_back(bytes.data(), size);
    bytes.remove_prefix(size);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer Whole(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

/// Takes bytes in places of random size.
class CollectingInput final : public engine::StreamedInput {
 public:
  explicit CollectingInput(std::mt19937_64& random) : random_(random) {}

  absl::StatusOr<absl::Span<std::byte>> Place(engine::StreamTensor tensor, std::uint64_t offset,
                                              std::uint64_t size) override {
    tensor_ = tensor;
    if (!first_offset_.has_value()) first_offset_ = offset;
    EXPECT_EQ(offset, *first_offset_ + bytes_.size());
    place_.assign(size == 0 ? 0 : 1 + random_() % size, std::byte{0});
    return absl::MakeSpan(place_);
  }
  void Placed(std::size_t size) override {
    EXPECT_EQ(size, place_.size());
    bytes_.append(reinterpret_cast<const char*>(place_.data()), size);
  }
  void EndOfInput() override {}
  bool WantsInput() override { return true; }

  engine::StreamTensor tensor_ = engine::StreamTensor::kH;
  std::optional<std::uint64_t> first_offset_;
  std::string bytes_;

 private:
  std::mt19937_64& random_;
  std::vector<std::byte> place_;
};

std::string RandomBytes(std::mt19937_64& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(ParseFrame, PayloadsArriveWholeThroughAnySlicing) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    v1::PrefillFrame sent;
    sent.mutable_data()->set_tensor(v1::TENSOR_ID_W);
    sent.mutable_data()->set_offset(random() >> (random() % 64));
    sent.mutable_data()->set_payload(RandomBytes(random, random() % 300));
    grpc::ByteBuffer bytes = Sliced(sent.SerializeAsString(), random);
    v1::PrefillRequest header;
    const auto frame = ParseFrame(bytes, header);
    ASSERT_TRUE(frame.ok()) << frame.status();
    ASSERT_EQ(frame->kind, Kind::kData);
    EXPECT_EQ(frame->offset, sent.data().offset());
    CollectingInput input(random);
    ASSERT_TRUE(DeliverPayload(bytes, *frame, input).ok());
    EXPECT_EQ(input.tensor_, engine::StreamTensor::kW);
    EXPECT_EQ(input.first_offset_, sent.data().offset());
    EXPECT_EQ(input.bytes_, sent.data().payload());
  }
}

TEST(ParseFrame, HeadersOfAllThreeFramesAreInField1AndDataInField2) {
  v1::PrefillFrame prefill;
  prefill.mutable_request()->set_session("s");
  v1::ReadSlotsFrame read;
  read.mutable_contents()->add_slots(5);
  v1::WriteSlotsFrame write;
  write.mutable_header()->set_session("t");
  v1::PrefillRequest request;
  v1::SlotContents contents;
  v1::WriteSlotsHeader header;
  grpc::ByteBuffer bytes = Whole(prefill.SerializeAsString());
  EXPECT_EQ(ParseFrame(bytes, request)->kind, Kind::kHeader);
  EXPECT_EQ(request.session(), "s");
  bytes = Whole(read.SerializeAsString());
  EXPECT_EQ(ParseFrame(bytes, contents)->kind, Kind::kHeader);
  EXPECT_EQ(contents.slots(0), 5);
  bytes = Whole(write.SerializeAsString());
  EXPECT_EQ(ParseFrame(bytes, header)->kind, Kind::kHeader);
  EXPECT_EQ(header.session(), "t");
}

/// As protobuf itself reads the same bytes.
void ExpectAsProtobuf(const std::string& text, std::mt19937_64& random) {
  v1::PrefillFrame expected;
  const bool valid = expected.ParseFromString(text);
  grpc::ByteBuffer bytes = Sliced(text, random);
  v1::PrefillRequest header;
  const auto frame = ParseFrame(bytes, header);
  if (!frame.ok()) {
    EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(valid);
    return;
  }
  // Members that this side does not take are skipped without a look inside, so they may hold anything.
  if (!valid) {
    EXPECT_EQ(frame->kind, Kind::kEmpty);
    return;
  }
  EXPECT_EQ(frame->kind == Kind::kHeader, expected.has_request());
  EXPECT_EQ(frame->kind == Kind::kData, expected.has_data());
  if (expected.has_request()) {
    EXPECT_EQ(header.SerializeAsString(), expected.request().SerializeAsString());
  }
  if (expected.has_data()) {
    EXPECT_EQ(frame->tensor, expected.data().tensor());
    EXPECT_EQ(frame->offset, expected.data().offset());
    ASSERT_EQ(frame->payload_size, static_cast<std::int64_t>(expected.data().payload().size()));
    EXPECT_EQ(text.substr(frame->payload_position, frame->payload_size), expected.data().payload());
  }
}

TEST(ParseFrame, FieldsInAnyOrderRepeatedAndUnknownReadAsProtobufReadsThem) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    // Concatenated messages are one message.
    std::string text;
    for (std::uint64_t parts = random() % 4 + 1; parts > 0; --parts) {
      v1::PrefillFrame part;
      switch (random() % 4) {
        case 0:
          part.mutable_request()->set_session(std::string(random() % 20, 'a'));
          part.mutable_request()->add_cu_seqlens(7);
          break;
        case 1: {
          std::string fields;
          for (int i = 0; i < 4; ++i) {
            v1::TensorData field;
            if (random() % 3 == 0) field.set_tensor(static_cast<v1::TensorId>(random() % 70));
            if (random() % 3 == 0) field.set_offset(random());
            if (random() % 3 == 0) field.set_payload(RandomBytes(random, random() % 60));
            if (random() % 5 == 0) field.GetReflection()->MutableUnknownFields(&field)->AddVarint(9, random());
            fields += field.SerializeAsString();
          }
          part.mutable_data()->ParseFromString(fields);
          // The same fields, unmerged, behind a tag and size of their own.
          text += '\x12';
          text += static_cast<char>(fields.size() & 0x7F);
          text += fields.substr(0, fields.size() & 0x7F);
          break;
        }
        case 2:
          part.mutable_response()->add_positions(3);
          break;
        default:
          part.GetReflection()->MutableUnknownFields(&part)->AddLengthDelimited(15, "unknown");
      }
      text += part.SerializeAsString();
    }
    ExpectAsProtobuf(text, random);
  }
}

TEST(ParseFrame, GarbageAndTruncationAreRefusedAsProtobufRefusesThem) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 20'000; ++round) ExpectAsProtobuf(RandomBytes(random, random() % 24), random);
  v1::PrefillFrame sent;
  sent.mutable_data()->set_tensor(v1::TENSOR_ID_K);
  sent.mutable_data()->set_offset(300);
  sent.mutable_data()->set_payload("0123456789");
  const std::string whole = sent.SerializeAsString();
  for (std::size_t size = 0; size < whole.size(); ++size) ExpectAsProtobuf(whole.substr(0, size), random);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      ExpectAsProtobuf(flipped, random);
    }
  }
}

TEST(ParseFrame, HugeSizesAreRefused) {
  std::mt19937_64 random(4);
  for (const std::string size : {"\xFF\xFF\xFF\xFF\x07", "\xFF\xFF\xFF\xFF\x0F", "\x80\x80\x80\x80\x10",
                                 "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"}) {
    ExpectAsProtobuf("\x12" + size + "x", random);
    ExpectAsProtobuf("\x12\x08\x1A" + size + "x", random);
    ExpectAsProtobuf("\x0A" + size + "x", random);
  }
}

TEST(EncodeData, IsTheMessageAndKeepsItsOwner) {
  const std::string payload = "some payload";
  for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{5}, std::int64_t{1} << 40}) {
    auto owner = std::make_shared<int>(1);
    const std::weak_ptr<int> watch = owner;
    grpc::ByteBuffer frame =
        EncodeData(engine::StreamTensor::kVNew, offset, reinterpret_cast<const std::byte*>(payload.data()),
                   static_cast<std::int64_t>(payload.size()), std::move(owner));
    v1::PrefillFrame expected;
    expected.mutable_data()->set_tensor(v1::TENSOR_ID_V_NEW);
    expected.mutable_data()->set_offset(offset);
    expected.mutable_data()->set_payload(payload);
    v1::PrefillFrame parsed;
    ASSERT_TRUE(parsed.ParseFromString(Text(frame)));
    EXPECT_EQ(parsed.SerializeAsString(), expected.SerializeAsString());
    EXPECT_FALSE(watch.expired());
    frame.Clear();
    EXPECT_TRUE(watch.expired());
  }
}

TEST(FrameQueue, CutsPiecesIntoFramesAndKeepsTheOrder) {
  const std::string bytes(FrameQueue::kPayloadBytes * 2 + 5, 'x');
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  FrameQueue queue;
  v1::PrefillFrame last;
  last.mutable_response()->add_positions(1);
  queue.Push({engine::StreamTensor::kH, 100, reinterpret_cast<const std::byte*>(bytes.data()),
              static_cast<std::int64_t>(bytes.size()), std::move(owner)});
  queue.Push(last);
  std::uint64_t offset = 100;
  for (const std::int64_t size : {FrameQueue::kPayloadBytes, FrameQueue::kPayloadBytes, std::int64_t{5}}) {
    const grpc::ByteBuffer* frame = queue.Next();
    ASSERT_NE(frame, nullptr);
    EXPECT_EQ(queue.Next(), nullptr);  // one at a time
    v1::PrefillFrame parsed;
    ASSERT_TRUE(parsed.ParseFromString(Text(*frame)));
    EXPECT_EQ(parsed.data().offset(), offset);
    EXPECT_EQ(parsed.data().payload().size(), static_cast<std::size_t>(size));
    EXPECT_EQ(queue.Sent(), size);
    offset += static_cast<std::uint64_t>(size);
  }
  EXPECT_TRUE(watch.expired());
  v1::PrefillFrame parsed;
  ASSERT_TRUE(parsed.ParseFromString(Text(*queue.Next())));
  EXPECT_TRUE(parsed.has_response());
  EXPECT_FALSE(queue.IsEmpty());
  EXPECT_EQ(queue.Sent(), 0);
  EXPECT_TRUE(queue.IsEmpty());
}

}  // namespace
}  // namespace gdpcache::rpc
