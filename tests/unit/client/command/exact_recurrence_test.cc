#include "client/command/exact_recurrence.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/client/command/small_batch.h"

namespace gdpcache::command {
namespace {

using ::gdpcache::test::SmallBatch;
using ::testing::DoubleEq;
using ::testing::ElementsAre;

RecordedBatch Load(const SmallBatch& batch) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/exact.safetensors";
  EXPECT_TRUE(batch.Write(path).ok());
  absl::StatusOr<RecordedBatch> loaded = LoadRecordedBatch(path);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

TEST(ComputeExactlyTest, MatchesAHandComputedChunkPair) {
  const ExactResults exact = ComputeExactly(Load(SmallBatch()));
  // Chunk 0, rows 0 and 1, S = 4: x = 10 - 0.5 * 4 = 8 and 20 - 1 * 4 = 16; factors 2^(-2 - -1) = 1/2 and 1;
  // S = 4 * 2^-2 + 1 * 8 / 2 + 2 * 16 = 37.
  // Chunk 1, row 2: x = 30 - 2 * 37 = -44, factor 1; S = 37 * 2^-1 + 3 * -44 = -113.5.
  EXPECT_THAT(exact.h, ElementsAre(4, 37));
  EXPECT_THAT(exact.v_new, ElementsAre(8, 16, -44));
  EXPECT_THAT(exact.final_state, ElementsAre(-113.5, 7));
  EXPECT_THAT(exact.state, ElementsAre(7, 8, -113.5));
}

TEST(ComputeExactlyTest, WithoutDecaysTheStateOnlyGrows) {
  SmallBatch batch;
  batch.Remove("g");
  const ExactResults exact = ComputeExactly(Load(batch));
  // S = 4 + 1 * 8 + 2 * 16 = 44, then x = 30 - 88 = -58 and S = 44 + 3 * -58.
  EXPECT_THAT(exact.h, ElementsAre(4, 44));
  EXPECT_THAT(exact.final_state, ElementsAre(-130, 7));
}

TEST(ComputeExactlyTest, ASequenceWithoutSlotStartsFromZeroAndStoresNowhere) {
  SmallBatch batch;
  batch.Integers("state_indices", {-1, 0});
  const ExactResults exact = ComputeExactly(Load(batch));
  EXPECT_THAT(exact.h, ElementsAre(0, 10.0 / 2 + 2 * 20));
  EXPECT_THAT(exact.state, ElementsAre(7, 8, 4));
}

TEST(ComputeExactlyTest, EmptySequencesTakeTheirInitialState) {
  SmallBatch batch;
  batch.metadata["initial_state"] = "zero";
  EXPECT_THAT(ComputeExactly(Load(batch)).state, ElementsAre(0, 8, DoubleEq(45 / 2.0 + 3 * (30 - 2 * 45))));
  batch.metadata["initial_state"] = "dense";
  batch.Floats("initial_state", {2, 1, 1, 1}, {4, 5});
  EXPECT_THAT(ComputeExactly(Load(batch)).state, ElementsAre(5, 8, -113.5));
}

TEST(ComputeExactlyTest, WithTwoHouseholdersBoundariesLieEverySecondChunk) {
  SmallBatch batch;
  batch.metadata["num_householder"] = "2";
  batch.Floats("k", {6, 1, 1}, {1, 0, 0, 0, 1, 0});
  batch.Floats("w", {6, 1, 1}, {0, 0, 0, 0, 0, 0});
  batch.Floats("u", {6, 1, 1}, {1, 0, 0, 0, 5, 0});
  batch.Remove("g");
  batch.Integers("cu_seqlens", {0, 6, 6});
  // Three tokens in chunks of two tokens: boundaries before expanded rows 0 and 4.
  EXPECT_THAT(ComputeExactly(Load(batch)).h, ElementsAre(4, 5));
}

TEST(ComputeExactlyTest, KeysAndValuesAreNotMixedUp) {
  SmallBatch batch;
  batch.Floats("k", {3, 1, 2}, {1, 2, 0, 0, 0, 0});
  batch.Floats("w", {3, 1, 2}, {0, 0, 1, 10, 0, 0});
  batch.Floats("u", {3, 1, 3}, {1, 2, 3, 0, 0, 0, 0, 0, 0});
  batch.Floats("state.before", {3, 1, 2, 3}, std::vector<float>(18, 0));
  batch.metadata["chunk_size"] = "1";
  batch.Remove("g");
  const ExactResults exact = ComputeExactly(Load(batch));
  const std::vector<double> outer = {1, 2, 3, 2, 4, 6};
  EXPECT_EQ(std::vector<double>(exact.h.begin() + 6, exact.h.begin() + 12), outer);
  EXPECT_EQ(std::vector<double>(exact.v_new.begin() + 3, exact.v_new.begin() + 6),
            (std::vector<double>{-21, -42, -63}));
}

TEST(ToDoublesTest, DecodesHalfTypes) {
  const std::uint16_t bfloat[] = {0x3f80, 0xc049, 0x0000, 0x7f80, 0x0001};
  EXPECT_THAT(ToDoubles({DataType::kBFloat16, {5}, bfloat}),
              ElementsAre(1.0, -3.140625, 0.0, HUGE_VAL, std::ldexp(1.0, -133)));
  const std::uint16_t half[] = {0x3c00, 0xc248, 0x0001, 0x7bff, 0xfc00, 0x03ff};
  EXPECT_THAT(ToDoubles({DataType::kFloat16, {6}, half}),
              ElementsAre(1.0, -3.140625, std::ldexp(1.0, -24), 65504.0, -HUGE_VAL, std::ldexp(1023, -24)));
  const std::uint16_t nan[] = {0x7e00};
  EXPECT_TRUE(std::isnan(ToDoubles({DataType::kFloat16, {1}, nan})[0]));
}

}  // namespace
}  // namespace gdpcache::command
