#include "gdpcache/boundary_policy.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdpcache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

BoundaryPolicy None() {
  BoundaryPolicy policy;
  policy.last_aligned = policy.penultimate = policy.divergence = false;
  return policy;
}

std::vector<std::int64_t> Positions(const BoundaryPolicy& policy, const PromptExtent& prompt) {
  const absl::StatusOr<std::vector<std::int64_t>> positions = BoundaryPositions(policy, prompt);
  EXPECT_TRUE(positions.ok()) << positions.status();
  return positions.value_or(std::vector<std::int64_t>{-1});
}

TEST(BoundaryPolicyTest, TheDefaultKeepsLastAlignedPenultimateAndDivergence) {
  EXPECT_THAT(Positions({}, {.tokens = 1000, .known = 300}), ElementsAre(256, 896, 960));
  EXPECT_THAT(Positions({}, {.tokens = 1024, .known = 0}), ElementsAre(960, 1024));
}

TEST(BoundaryPolicyTest, WhatFallsTogetherIsKeptOnce) {
  EXPECT_THAT(Positions({}, {.tokens = 200, .known = 150}), ElementsAre(128, 192));
  EXPECT_THAT(Positions({}, {.tokens = 200, .known = 200}), ElementsAre(128, 192));
}

TEST(BoundaryPolicyTest, ShortPromptsHaveFewBoundariesOrNone) {
  EXPECT_THAT(Positions({}, {.tokens = 0}), IsEmpty());
  EXPECT_THAT(Positions({}, {.tokens = 63, .known = 63}), IsEmpty());
  EXPECT_THAT(Positions({}, {.tokens = 64}), ElementsAre(64));
}

TEST(BoundaryPolicyTest, NothingUpToTheRestoredPositionIsKeptAgain) {
  EXPECT_THAT(Positions({}, {.tokens = 1000, .known = 300, .resumed = 256}), ElementsAre(896, 960));
  EXPECT_THAT(Positions({}, {.tokens = 1000, .known = 1000, .resumed = 960}), IsEmpty());
}

TEST(BoundaryPolicyTest, EveryNTokens) {
  BoundaryPolicy policy = None();
  policy.interval = 256;
  EXPECT_THAT(Positions(policy, {.tokens = 1024}), ElementsAre(256, 512, 768, 1024));
  EXPECT_THAT(Positions(policy, {.tokens = 1023, .resumed = 300}), ElementsAre(512, 768));
  EXPECT_THAT(Positions(policy, {.tokens = 255}), IsEmpty());
}

TEST(BoundaryPolicyTest, OffsetsAreRoundedDownExceptTheEndItself) {
  BoundaryPolicy policy = None();
  policy.from_start = {100, 0, 2000, kMax};
  policy.from_end = {0, 10, 900, 2000, kMax};
  EXPECT_THAT(Positions(policy, {.tokens = 1000}), ElementsAre(64, 960, 1000));
}

TEST(BoundaryPolicyTest, AnIntervalNearTheLargestNumberEnds) {
  BoundaryPolicy policy = None();
  policy.alignment = policy.interval = std::int64_t{1} << 62;
  EXPECT_THAT(Positions(policy, {.tokens = kMax}), ElementsAre(std::int64_t{1} << 62));
}

TEST(BoundaryPolicyTest, NumbersThatMakeNoSenseAreNamed) {
  const auto error = [](const BoundaryPolicy& policy, const PromptExtent& prompt) {
    const absl::Status status = BoundaryPositions(policy, prompt).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  BoundaryPolicy policy;
  policy.alignment = 0;
  EXPECT_THAT(error(policy, {.tokens = 1}), HasSubstr("alignment is 0"));
  policy = {};
  policy.interval = 100;
  EXPECT_THAT(error(policy, {.tokens = 1}), HasSubstr("interval is 100; it must be a multiple of the alignment, 64"));
  policy = {};
  policy.from_end = {-1};
  EXPECT_THAT(error(policy, {.tokens = 1}), HasSubstr("from_end is -1"));
  policy = {};
  policy.from_start = {-7};
  EXPECT_THAT(error(policy, {.tokens = 1}), HasSubstr("from_start is -7"));
  EXPECT_THAT(error({}, {.tokens = -1}), HasSubstr("tokens is -1"));
  EXPECT_THAT(error({}, {.tokens = 5, .known = 6}), HasSubstr("known is 6; it must be from 0 to the prompt's 5"));
  EXPECT_THAT(error({}, {.tokens = 5, .resumed = -1}), HasSubstr("resumed is -1"));
}

std::vector<std::int64_t> Boundaries(const std::vector<std::int64_t>& positions, std::int64_t begin, std::int64_t end,
                                     std::int64_t chunk_size = 64) {
  const absl::StatusOr<std::vector<CallBoundary>> found = CallBoundaries(positions, begin, end, chunk_size);
  EXPECT_TRUE(found.ok()) << found.status();
  std::vector<std::int64_t> flat;
  for (const CallBoundary& boundary : found.value()) {
    flat.push_back(boundary.boundary);
    flat.push_back(boundary.position);
  }
  return flat;
}

TEST(CallBoundariesTest, OneCallReachesAlignedPositionsAndItsEnd) {
  EXPECT_THAT(Boundaries({64, 128, 200}, 0, 200), ElementsAre(1, 64, 2, 128, 4, 200));
  EXPECT_THAT(Boundaries({64, 128, 192}, 0, 192), ElementsAre(1, 64, 2, 128, 3, 192));
  EXPECT_THAT(Boundaries({32}, 0, 200, 16), ElementsAre(2, 32));
}

TEST(CallBoundariesTest, SeveralCallsReachEveryPositionOnce) {
  const std::vector<std::int64_t> positions = {64, 128, 256, 300};
  EXPECT_THAT(Boundaries(positions, 0, 128), ElementsAre(1, 64, 2, 128));
  EXPECT_THAT(Boundaries(positions, 128, 256), ElementsAre(2, 256));
  EXPECT_THAT(Boundaries(positions, 256, 300), ElementsAre(1, 300));
}

TEST(CallBoundariesTest, ACallThatBeginsBetweenChunksReachesWhatLiesOnItsOwnBoundaries) {
  EXPECT_THAT(Boundaries({128, 164, 192, 256}, 100, 256), ElementsAre(1, 164, 3, 256));
}

TEST(CallBoundariesTest, PositionsElsewhereArePassedOver) {
  EXPECT_THAT(Boundaries({0, 64, 65, 640}, 64, 128), IsEmpty());
  EXPECT_THAT(Boundaries({64}, 64, 64), IsEmpty());
}

TEST(CallBoundariesTest, ImpossibleCallsAreRefused) {
  EXPECT_EQ(CallBoundaries({}, -1, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CallBoundaries({}, 5, 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CallBoundaries({}, 0, 4, -16).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gdpcache
