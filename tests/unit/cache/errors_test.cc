#include "server/cache/errors.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdpcache::cache {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(ErrorsTest, OneIsNoPlural) {
  EXPECT_EQ(Counted(0, "slot"), "0 slots");
  EXPECT_EQ(Counted(1, "slot"), "1 slot");
  EXPECT_EQ(Counted(2, "open session"), "2 open sessions");
}

TEST(ErrorsTest, AFieldViolationKeepsBothTextsWhateverTheyHold) {
  const std::string field("a:b\0[3]", 7);
  const absl::Status status = InvalidField(field, "is 17: the cache has 8 slots");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), field + " is 17: the cache has 8 slots");
  ASSERT_TRUE(FieldViolationOf(status).has_value());
  EXPECT_EQ(FieldViolationOf(status)->field, field);
  EXPECT_EQ(FieldViolationOf(status)->description, "is 17: the cache has 8 slots");
  EXPECT_FALSE(RetryAfterOf(status).has_value());
  EXPECT_FALSE(ResourceOf(status).has_value());
  EXPECT_TRUE(PositionDifferencesOf(status).empty());
}

TEST(ErrorsTest, ExhaustedSaysWhenToTryAgain) {
  const absl::Status status = Exhausted("full", absl::Milliseconds(1500));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfterOf(status), absl::Milliseconds(1500));
}

TEST(ErrorsTest, AResourceNameIsCutWhenLong) {
  const absl::Status status =
      ResourceError(absl::StatusCode::kNotFound, "session", std::string(1 << 20, 'x'), "no such session");
  ASSERT_TRUE(ResourceOf(status).has_value());
  EXPECT_EQ(ResourceOf(status)->type, "session");
  EXPECT_THAT(ResourceOf(status)->name, SizeIs(128));
}

TEST(ErrorsTest, PositionMismatchListsEveryDifference) {
  std::vector<PositionDifference> differences;
  for (int n = 0; n < 1'000; ++n) differences.push_back({n, n + 1, 64, -n});
  const absl::Status status = PositionMismatch(differences);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected_positions[1] is 64; slot 2 is at -1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("and 996 more"));
  const std::vector<PositionDifference> listed = PositionDifferencesOf(status);
  ASSERT_THAT(listed, SizeIs(1'000));
  EXPECT_EQ(listed[999].sequence, 999);
  EXPECT_EQ(listed[999].slot, 1'000);
  EXPECT_EQ(listed[999].expected, 64);
  EXPECT_EQ(listed[999].actual, -999);
}

TEST(ErrorsTest, QuotedEscapesAndCuts) {
  EXPECT_EQ(Quoted(std::string("a\n\0\x80", 4)), R"('a\n\x00\x80')");
  EXPECT_EQ(Quoted(std::string(65, 'x')), "'" + std::string(64, 'x') + "...'");
}

}  // namespace
}  // namespace gdpcache::cache
