#include "server/rpc/status.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gdpcache/v1/prefill.pb.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "server/cache/errors.h"
#include "tests/support/status_details.h"

namespace gdpcache::rpc {
namespace {

using test::DetailOf;
using ::testing::EndsWith;
using ::testing::Le;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(StatusTest, CodesAndMessagesPassThrough) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  const std::vector<std::pair<absl::StatusCode, grpc::StatusCode>> codes = {
      {absl::StatusCode::kCancelled, grpc::StatusCode::CANCELLED},
      {absl::StatusCode::kUnknown, grpc::StatusCode::UNKNOWN},
      {absl::StatusCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
      {absl::StatusCode::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
      {absl::StatusCode::kNotFound, grpc::StatusCode::NOT_FOUND},
      {absl::StatusCode::kAlreadyExists, grpc::StatusCode::ALREADY_EXISTS},
      {absl::StatusCode::kPermissionDenied, grpc::StatusCode::PERMISSION_DENIED},
      {absl::StatusCode::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
      {absl::StatusCode::kFailedPrecondition, grpc::StatusCode::FAILED_PRECONDITION},
      {absl::StatusCode::kAborted, grpc::StatusCode::ABORTED},
      {absl::StatusCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE},
      {absl::StatusCode::kUnimplemented, grpc::StatusCode::UNIMPLEMENTED},
      {absl::StatusCode::kInternal, grpc::StatusCode::INTERNAL},
      {absl::StatusCode::kUnavailable, grpc::StatusCode::UNAVAILABLE},
      {absl::StatusCode::kDataLoss, grpc::StatusCode::DATA_LOSS},
      {absl::StatusCode::kUnauthenticated, grpc::StatusCode::UNAUTHENTICATED},
  };
  for (const auto& [code, grpc_code] : codes) {
    const grpc::Status status = ToGrpcStatus(absl::Status(code, "why"));
    EXPECT_EQ(status.error_code(), grpc_code);
    EXPECT_EQ(status.error_message(), "why");
    EXPECT_EQ(status.error_details(), "") << "nothing to tell beyond the code and message";
  }
}

TEST(StatusTest, AFieldViolationBecomesBadRequest) {
  const grpc::Status status = ToGrpcStatus(cache::InvalidField("state_indices[3]", "is 17; the cache has 8 slots"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "state_indices[3] is 17; the cache has 8 slots");
  const auto detail = DetailOf<google::rpc::BadRequest>(status);
  ASSERT_THAT(detail.field_violations(), SizeIs(1));
  EXPECT_EQ(detail.field_violations(0).field(), "state_indices[3]");
  EXPECT_EQ(detail.field_violations(0).description(), "is 17; the cache has 8 slots");
}

TEST(StatusTest, ExhaustedBecomesRetryInfo) {
  const grpc::Status status = ToGrpcStatus(cache::Exhausted("full", absl::Milliseconds(2500)));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto detail = DetailOf<google::rpc::RetryInfo>(status);
  EXPECT_EQ(detail.retry_delay().seconds(), 2);
  EXPECT_EQ(detail.retry_delay().nanos(), 500'000'000);
}

TEST(StatusTest, AResourceBecomesResourceInfo) {
  const grpc::Status status =
      ToGrpcStatus(cache::ResourceError(absl::StatusCode::kNotFound, "cache", "models/a", "there is no cache"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  const auto detail = DetailOf<google::rpc::ResourceInfo>(status);
  EXPECT_EQ(detail.resource_type(), "cache");
  EXPECT_EQ(detail.resource_name(), "models/a");
}

TEST(StatusTest, ALongNameOfAResourceEndsWithAWholeCharacter) {
  const std::string start(127, 'x');
  for (const char* rest : {"\u00e9", "\u00e9\u00e9", "\U0001f600\U0001f600"}) {
    const grpc::Status status =
        ToGrpcStatus(cache::ResourceError(absl::StatusCode::kNotFound, "session", start + rest, "there is none"));
    EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status).resource_name(), start);
  }
  const std::string fits = std::string(126, 'x') + "\u00e9";
  const grpc::Status status =
      ToGrpcStatus(cache::ResourceError(absl::StatusCode::kNotFound, "session", fits + "\u00e9", "there is none"));
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status).resource_name(), fits);
}

TEST(StatusTest, PositionDifferencesBecomePositionMismatch) {
  const grpc::Status status = ToGrpcStatus(cache::PositionMismatch({{0, 7, 64, 128}, {2, 9, 0, 64}}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  const auto detail = DetailOf<v1::PositionMismatch>(status);
  ASSERT_THAT(detail.slots(), SizeIs(2));
  EXPECT_EQ(detail.slots(1).sequence(), 2);
  EXPECT_EQ(detail.slots(1).slot(), 9);
  EXPECT_EQ(detail.slots(1).expected(), 0);
  EXPECT_EQ(detail.slots(1).actual(), 64);
}

TEST(StatusTest, WhateverTheErrorItFitsIntoATrailer) {
  std::vector<cache::PositionDifference> differences;
  for (int n = 0; n < 65'536; ++n) differences.push_back({n, 1'000'000 + n, std::int64_t{1} << 40, -1});
  const grpc::Status positions = ToGrpcStatus(cache::PositionMismatch(differences));
  EXPECT_THAT(positions.error_details(), SizeIs(Le(4096u)));
  EXPECT_GT(DetailOf<v1::PositionMismatch>(positions).slots_size(), 50);

  const std::string endless(1 << 20, 'x');
  const grpc::Status field = ToGrpcStatus(cache::InvalidField(endless, endless));
  EXPECT_THAT(field.error_message(), SizeIs(512));
  EXPECT_THAT(field.error_message(), EndsWith("..."));
  EXPECT_THAT(field.error_details(), SizeIs(Le(4096u)));
}

TEST(StatusTest, ACutMessageStaysUtf8) {
  std::string text;
  while (text.size() < 1'000) text += "\xe2\x82\xac";  // the euro sign
  const std::string message = ToGrpcStatus(absl::InternalError(text)).error_message();
  EXPECT_THAT(message, SizeIs(Le(512u)));
  EXPECT_EQ((message.size() - 3) % 3, 0u);
  EXPECT_THAT(text, StartsWith(message.substr(0, message.size() - 3)));
}

}  // namespace
}  // namespace gdpcache::rpc
