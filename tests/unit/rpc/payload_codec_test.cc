#include "server/rpc/payload_codec.h"

#include <memory>
#include <string>
#include <vector>

#include "gdpcache/v1/snapshot.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/frame_codec.h"

namespace gdpcache::rpc {
namespace {

grpc::ByteBuffer Buffer(const std::vector<std::string>& slices) {
  std::vector<grpc::Slice> copies;
  for (const std::string& slice : slices) copies.emplace_back(slice);
  return grpc::ByteBuffer(copies.data(), copies.size());
}

std::string Payload(grpc::ByteBuffer& bytes, const PayloadFrame& frame) {
  std::string payload;
  EXPECT_TRUE(ReadPayload(bytes, frame, [&payload](absl::Span<const std::byte> piece) {
                payload.append(reinterpret_cast<const char*>(piece.data()), piece.size());
                return absl::OkStatus();
              }).ok());
  return payload;
}

TEST(PayloadCodecTest, EncodesWhatProtobufWouldHoweverTheBytesLie) {
  const auto memory = std::make_shared<std::string>(40'000, 'x');
  for (std::size_t n = 0; n < memory->size(); ++n) (*memory)[n] = static_cast<char>(n * 7);
  for (const std::vector<std::size_t>& sizes :
       {std::vector<std::size_t>{40'000}, {10, 20'000, 19'990}, {5, 6, 7}, {}, {20'000, 1, 19'000, 999}}) {
    std::vector<kernels::ByteRange> ranges;
    std::size_t total = 0;
    for (const std::size_t size : sizes) {
      ranges.push_back({memory->data() + total, size});
      total += size;
    }
    v1::ReadSnapshotResponse fields;
    fields.set_size(123'456);
    fields.set_offset(77);
    const grpc::ByteBuffer encoded =
        EncodePayload(fields, v1::ReadSnapshotResponse::kPayloadFieldNumber, ranges, memory);
    v1::ReadSnapshotResponse decoded;
    ASSERT_TRUE(ParseMessage(encoded, decoded).ok());
    EXPECT_EQ(decoded.size(), 123'456);
    EXPECT_EQ(decoded.offset(), 77u);
    EXPECT_TRUE(decoded.payload() == memory->substr(0, total));
  }
  EXPECT_EQ(memory.use_count(), 1) << "the frames let go of it";
}

TEST(PayloadCodecTest, ReadsHeadersAndPayloadsAcrossSlices) {
  v1::WriteSnapshotRequest message;
  message.mutable_header()->set_cache("model");
  message.mutable_header()->set_size(5);
  const std::string header = message.SerializeAsString();
  message.set_payload(std::string(1'000, 'p') + "end");
  const std::string payload = message.SerializeAsString();
  for (std::size_t cut = 0; cut <= header.size(); ++cut) {
    grpc::ByteBuffer bytes = Buffer({header.substr(0, cut), header.substr(cut)});
    v1::WriteSnapshotHeader parsed;
    const absl::StatusOr<PayloadFrame> frame = ParsePayloadFrame(bytes, parsed);
    ASSERT_TRUE(frame.ok());
    EXPECT_EQ(frame->kind, PayloadFrame::Kind::kHeader);
    EXPECT_EQ(parsed.cache(), "model");
  }
  for (std::size_t cut = 0; cut <= payload.size(); ++cut) {
    grpc::ByteBuffer bytes = Buffer({payload.substr(0, cut), payload.substr(cut)});
    v1::WriteSnapshotHeader parsed;
    const absl::StatusOr<PayloadFrame> frame = ParsePayloadFrame(bytes, parsed);
    ASSERT_TRUE(frame.ok());
    ASSERT_EQ(frame->kind, PayloadFrame::Kind::kPayload);
    EXPECT_EQ(Payload(bytes, *frame), message.payload());
  }
}

TEST(PayloadCodecTest, TheLastMemberCountsAndUnknownFieldsDoNot) {
  v1::WriteSnapshotRequest payload;
  payload.set_payload("bytes");
  v1::WriteSnapshotRequest header;
  header.mutable_header()->set_cache("model");
  const std::string unknown("\x7a\x03xyz", 5);  // field 15
  v1::WriteSnapshotHeader parsed;
  grpc::ByteBuffer bytes = Buffer({header.SerializeAsString() + unknown + payload.SerializeAsString()});
  absl::StatusOr<PayloadFrame> frame = ParsePayloadFrame(bytes, parsed);
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(Payload(bytes, *frame), "bytes");
  bytes = Buffer({payload.SerializeAsString() + header.SerializeAsString() + unknown});
  frame = ParsePayloadFrame(bytes, parsed);
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(frame->kind, PayloadFrame::Kind::kHeader);
  bytes = Buffer({unknown});
  EXPECT_EQ(ParsePayloadFrame(bytes, parsed)->kind, PayloadFrame::Kind::kEmpty);
}

TEST(PayloadCodecTest, BytesThatAreNoFrameAreRefused) {
  for (const std::string& text : {std::string("\x12\x05"
                                              "abc",
                                              5),
                                  std::string("\x0a\x05\x0a", 3), std::string("\x07", 1),
                                  std::string("\x0a\x02\x0a\x7f", 4), std::string("\x12\xff\xff\xff\xff\x7f", 6)}) {
    grpc::ByteBuffer bytes = Buffer({text});
    v1::WriteSnapshotHeader parsed;
    EXPECT_EQ(ParsePayloadFrame(bytes, parsed).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(PayloadCodecTest, AnErrorOfTheTakerEndsTheReading) {
  v1::WriteSnapshotRequest message;
  message.set_payload(std::string(100, 'p'));
  const std::string text = message.SerializeAsString();
  grpc::ByteBuffer bytes = Buffer({text.substr(0, 50), text.substr(50)});
  v1::WriteSnapshotHeader parsed;
  const absl::StatusOr<PayloadFrame> frame = ParsePayloadFrame(bytes, parsed);
  ASSERT_TRUE(frame.ok());
  int calls = 0;
  EXPECT_EQ(ReadPayload(bytes, *frame,
                        [&calls](absl::Span<const std::byte>) {
                          ++calls;
                          return absl::DataLossError("no");
                        })
                .code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace gdpcache::rpc
