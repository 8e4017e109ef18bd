#include "server/rpc/message_memory.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gdpcache/v1/prefill.pb.h"
#include "gdpcache/v1/session.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/payload_codec.h"

namespace gdpcache::rpc {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMessage = 15 << 20;

/// In slices as the transport has them.
grpc::ByteBuffer Buffer(const std::string& bytes) {
  constexpr std::size_t kSlice = 8'192;
  std::vector<grpc::Slice> slices;
  for (std::size_t at = 0; at < bytes.size(); at += kSlice) slices.emplace_back(bytes.substr(at, kSlice));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Repeated(const std::string& part, std::size_t bytes) {
  std::string all;
  all.reserve(bytes + part.size());
  while (all.size() < bytes) all += part;
  return all;
}

/// A field with a length.
std::string Field(int number, const std::string& content) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(static_cast<std::uint32_t>(number) << 3 | 2);
  out.WriteVarint64(content.size());
  out.WriteString(content);
  out.Trim();
  return bytes;
}

absl::Status Check(const google::protobuf::Message& type, const std::string& bytes) {
  return CheckObjects(Buffer(bytes), *type.GetDescriptor());
}

TEST(CheckObjects, ManySmallPartsOfAnyKindAreTooMuch) {
  const v1::PrefillRequest prefill;
  const v1::CopySlotsRequest copies;
  const struct {
    const char* what;
    const google::protobuf::Message& type;
    std::string bytes;
  } cases[] = {
      {"unknown numbers", prefill, Repeated(std::string("\xf8\x07\x00", 3), kMessage)},
      {"unknown texts", prefill, Repeated(std::string("\xfa\x07\x00", 3), kMessage)},
      {"unknown groups", prefill, Repeated("\xfb\x07\xfc\x07", kMessage)},
      {"unknown fixed numbers", prefill, Repeated(std::string("\xfd\x07\x00\x00\x00\x00", 6), kMessage)},
      {"empty directives", prefill, Repeated(Field(v1::PrefillRequest::kSnapshotsFieldNumber, ""), kMessage)},
      {"empty boundaries", prefill,
       Field(v1::PrefillRequest::kStatesFieldNumber,
             Repeated(Field(v1::StateSelection::kSelectedFieldNumber, ""), kMessage))},
      {"unknown fields of a tensor", prefill,
       Field(v1::PrefillRequest::kKFieldNumber, Repeated(std::string("\xf8\x07\x00", 3), kMessage))},
      {"small numbers", prefill, Field(v1::PrefillRequest::kStateIndicesFieldNumber, std::string(kMessage, '\0'))},
      {"empty copies", copies, Repeated(Field(v1::CopySlotsRequest::kCopiesFieldNumber, ""), kMessage)},
  };
  for (const auto& [what, type, bytes] : cases) {
    const absl::Status status = Check(type, bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(status.message(), HasSubstr("they may take 67108864")) << what;
    const std::unique_ptr<google::protobuf::Message> message(type.New());
    EXPECT_EQ(ParseMessage(Buffer(bytes), *message), status) << what;
    grpc::ByteBuffer frame = Buffer(Field(1, bytes));
    EXPECT_THAT(ParseFrame(frame, *message).status().message(), HasSubstr("they may take 67108864")) << what;
    EXPECT_THAT(ParsePayloadFrame(frame, *message).status().message(), HasSubstr("they may take 67108864")) << what;
    EXPECT_LT(message->SpaceUsedLong(), 10'000) << what << ": read nevertheless";
  }
}

TEST(CheckObjects, WhatIsCountedIsAboutWhatIsTaken) {
  // As much as just passes takes no more than three times the limit, whatever it is.
  for (const std::string& part : {std::string("\xf8\x07\x00", 3), std::string("\xfa\x07\x00", 3),
                                  std::string("\xfb\x07\xfc\x07", 4), Field(22, ""), std::string("\x70\x00", 2)}) {
    v1::PrefillRequest message;
    std::size_t bytes = std::size_t{1} << 20;
    while (bytes <= kMessage && Check(message, Repeated(part, bytes)).ok()) bytes += bytes / 8;
    ASSERT_TRUE(ParseMessage(Buffer(Repeated(part, bytes - bytes / 9)), message).ok());
    EXPECT_LT(message.SpaceUsedLong(), 3 * kMaxObjectBytes);
    EXPECT_GT(message.SpaceUsedLong(), kMaxObjectBytes / 4);
  }
}

TEST(CheckObjects, TheLargestThatAnybodyNeedsPasses) {
  constexpr std::int64_t kSequences = 65'536;
  v1::PrefillRequest request;
  request.mutable_states()->set_mode(v1::StateSelection::MODE_SELECTED);
  for (std::int64_t n = 0; n < kSequences; ++n) {
    request.add_cu_seqlens(n * 64);
    request.add_state_indices(n);
    request.add_expected_positions(n * 1'000);
    v1::SnapshotDirective& directive = *request.add_snapshots();
    directive.set_sequence(n);
    directive.set_boundary(1);
    directive.set_key(std::string(64, 'k'));
    for (int boundary = 0; boundary < 4; ++boundary) {
      v1::BoundaryRef& selected = *request.mutable_states()->add_selected();
      selected.set_sequence(n);
      selected.set_boundary(boundary);
    }
  }
  EXPECT_TRUE(Check(request, request.SerializeAsString()).ok());
  v1::PrefillRequest tensor;
  tensor.mutable_k()->set_inline_(std::string(kMessage, 'x'));
  EXPECT_TRUE(Check(tensor, tensor.SerializeAsString()).ok());
  v1::ReleaseSlotsRequest slots;
  for (int n = 0; n < 4'000'000; ++n) slots.add_slots(n + 1'000'000);
  EXPECT_TRUE(Check(slots, slots.SerializeAsString()).ok());
}

TEST(CheckObjects, BytesThatAreNoMessageAreLeftToTheReader) {
  v1::PrefillRequest request;
  for (const std::string& end :
       {std::string("\x07"), std::string("\x1a\xff\xff\xff\xff\x07"), std::string("\xfc\x07")}) {
    const std::string bytes = Field(v1::PrefillRequest::kSessionFieldNumber, std::string(100'000, 's')) + end;
    EXPECT_TRUE(Check(request, bytes).ok());
    EXPECT_EQ(ParseMessage(Buffer(bytes), request).message(), "the message is not what the protocol says");
  }
}

TEST(Trim, DropsWhatNobodyKnowsAtAnyDepth) {
  v1::PrefillRequest request;
  request.set_session("session");
  const auto bare = Trim(request);
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(1'000, std::string(100'000, 'x'));
  v1::Tensor& k = *request.mutable_k();
  k.GetReflection()->MutableUnknownFields(&k)->AddLengthDelimited(1'000, std::string(100'000, 'x'));
  EXPECT_LT(Trim(request), bare + 1'000);
  EXPECT_EQ(request.session(), "session");
}

}  // namespace
}  // namespace gdpcache::rpc
