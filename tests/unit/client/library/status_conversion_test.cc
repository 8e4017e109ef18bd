#include "client/library/status_conversion.h"

#include "absl/strings/cord.h"
#include "gdpcache/error_details.h"
#include "gdpcache/v1/prefill.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace gdpcache::client {
namespace {

grpc::Status WithDetail(grpc::StatusCode code, const google::protobuf::Message& detail) {
  google::rpc::Status details;
  details.add_details()->PackFrom(detail);
  return grpc::Status(code, "message", details.SerializeAsString());
}

TEST(ToAbslStatusTest, KeepsCodeAndMessage) {
  EXPECT_TRUE(ToAbslStatus(grpc::Status::OK).ok());
  const absl::Status status = ToAbslStatus(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "full");
}

TEST(ErrorDetailsTest, ReadsFieldViolations) {
  google::rpc::BadRequest detail;
  auto* violation = detail.add_field_violations();
  violation->set_field("state_indices[3]");
  violation->set_description("is 17; the cache has 8 slots");
  const absl::Status status = ToAbslStatus(WithDetail(grpc::StatusCode::INVALID_ARGUMENT, detail));
  const std::vector<FieldViolation> violations = FieldViolations(status);
  ASSERT_EQ(violations.size(), 1);
  EXPECT_EQ(violations[0].field, "state_indices[3]");
  EXPECT_EQ(violations[0].description, "is 17; the cache has 8 slots");
  EXPECT_FALSE(RetryDelay(status).has_value());
}

TEST(ErrorDetailsTest, ReadsRetryDelay) {
  google::rpc::RetryInfo detail;
  detail.mutable_retry_delay()->set_seconds(1);
  detail.mutable_retry_delay()->set_nanos(500'000'000);
  EXPECT_EQ(RetryDelay(ToAbslStatus(WithDetail(grpc::StatusCode::RESOURCE_EXHAUSTED, detail))),
            absl::Milliseconds(1500));
}

TEST(ErrorDetailsTest, ReadsPositionMismatches) {
  v1::PositionMismatch detail;
  auto* slot = detail.add_slots();
  slot->set_sequence(1);
  slot->set_slot(2);
  slot->set_expected(64);
  slot->set_actual(128);
  const auto mismatches = PositionMismatches(ToAbslStatus(WithDetail(grpc::StatusCode::FAILED_PRECONDITION, detail)));
  ASSERT_EQ(mismatches.size(), 1);
  EXPECT_EQ(mismatches[0].sequence, 1);
  EXPECT_EQ(mismatches[0].slot, 2);
  EXPECT_EQ(mismatches[0].expected, 64);
  EXPECT_EQ(mismatches[0].actual, 128);
}

TEST(ErrorDetailsTest, ReadsResource) {
  google::rpc::ResourceInfo detail;
  detail.set_resource_type("cache");
  detail.set_resource_name("model");
  const absl::Status status = ToAbslStatus(WithDetail(grpc::StatusCode::NOT_FOUND, detail));
  ASSERT_TRUE(ResourceOf(status).has_value());
  EXPECT_EQ(ResourceOf(status)->type, "cache");
  EXPECT_EQ(ResourceOf(status)->name, "model");
}

TEST(ErrorDetailsTest, FindsNothingInDamagedOrMissingDetails) {
  const absl::Status plain = ToAbslStatus(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "m", "\xff\xff garbage"));
  EXPECT_EQ(plain.message(), "m");
  absl::Status damaged = absl::InvalidArgumentError("m");
  damaged.SetPayload("type.googleapis.com/google.rpc.BadRequest", absl::Cord("\xff\xff"));
  for (const absl::Status& status : {plain, damaged, absl::OkStatus()}) {
    EXPECT_TRUE(FieldViolations(status).empty());
    EXPECT_TRUE(PositionMismatches(status).empty());
    EXPECT_FALSE(RetryDelay(status).has_value());
    EXPECT_FALSE(ResourceOf(status).has_value());
  }
}

}  // namespace
}  // namespace gdpcache::client
