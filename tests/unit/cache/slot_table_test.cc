#include "server/cache/slot_table.h"

#include <limits>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SessionKey kAlice = 1;
constexpr SessionKey kBob = 2;

TEST(SlotTableTest, GivesTheLowestFreeSlots) {
  SlotTable table(1, 6);
  EXPECT_THAT(table.Acquire(kAlice, 4).value(), ElementsAre(0, 1, 2, 3));
  ASSERT_TRUE(table.BeginRelease(kAlice, {2, 0}, "slots").ok());
  table.FinishRelease({2, 0});
  EXPECT_THAT(table.Acquire(kBob, 3).value(), ElementsAre(0, 2, 4));
  EXPECT_EQ(table.counts().free, 1);
  EXPECT_EQ(table.counts().held, 5);
}

TEST(SlotTableTest, TakesAllOrNone) {
  SlotTable table(1, 4);
  ASSERT_TRUE(table.Acquire(kAlice, 3).ok());
  const absl::Status status = table.Acquire(kBob, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("count is 2; 1 of the cache's 4 slots are free"));
  EXPECT_TRUE(RetryAfterOf(status).has_value());
  EXPECT_EQ(table.free_count(), 1);
  EXPECT_EQ(table.Acquire(kBob, std::numeric_limits<std::int64_t>::max()).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SlotTableTest, RefusesCountsBelowOne) {
  SlotTable table(1, 4);
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const absl::Status status = table.Acquire(kAlice, count).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(FieldViolationOf(status)->field, "count");
  }
  EXPECT_EQ(table.free_count(), 4);
}

TEST(SlotTableTest, ChecksRangeDuplicatesAndOwner) {
  SlotTable table(1, 4);
  ASSERT_TRUE(table.Acquire(kAlice, 2).ok());
  ASSERT_TRUE(table.Acquire(kBob, 1).ok());
  EXPECT_TRUE(table.CheckHeld(kAlice, {1, 0}, "slots").ok());
  for (const std::int64_t slot : {std::int64_t{-2}, std::int64_t{-1}, std::int64_t{4}, std::int64_t{1} << 62}) {
    const absl::Status status = table.CheckHeld(kAlice, {0, slot}, "slots");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << slot;
    EXPECT_EQ(FieldViolationOf(status)->field, "slots[1]");
    EXPECT_THAT(std::string(status.message()), HasSubstr("is " + std::to_string(slot) + "; the cache has 4 slots"));
  }
  EXPECT_EQ(table.CheckHeld(kAlice, {0, 1, 0}, "slots").code(), absl::StatusCode::kInvalidArgument);
  for (const std::int64_t slot : {2, 3}) {  // Bob's, nobody's
    const absl::Status status = table.CheckHeld(kAlice, {0, slot}, "slots");
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(ResourceOf(status)->type, "slot");
    EXPECT_EQ(ResourceOf(status)->name, std::to_string(slot));
  }
}

TEST(SlotTableTest, PaddingIsInertAndMayRepeat) {
  SlotTable table(1, 4);
  ASSERT_TRUE(table.Acquire(kAlice, 1).ok());
  EXPECT_TRUE(table.CheckHeld(kAlice, {-1, 0, -1}, "state_indices", /*allow_padding=*/true).ok());
  EXPECT_EQ(table.CheckHeld(kAlice, {-2}, "state_indices", /*allow_padding=*/true).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SlotTableTest, ADoubleReleaseIsRefusedAndChangesNothing) {
  SlotTable table(1, 4);
  ASSERT_TRUE(table.Acquire(kAlice, 3).ok());
  ASSERT_TRUE(table.BeginRelease(kAlice, {1}, "slots").ok());
  EXPECT_EQ(table.BeginRelease(kAlice, {0, 1}, "slots").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(table.BeginRelease(kAlice, {2, 2}, "slots").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table.counts().held, 2) << "0 and 2 are still held";
  table.FinishRelease({1});
  table.FinishRelease({1});
  EXPECT_EQ(table.counts().free, 2);
  EXPECT_EQ(table.counts().held, 2);
}

TEST(SlotTableTest, AReleasingSlotBelongsToNobody) {
  SlotTable table(1, 1);
  ASSERT_TRUE(table.Acquire(kAlice, 1).ok());
  ASSERT_TRUE(table.BeginRelease(kAlice, {0}, "slots").ok());
  EXPECT_FALSE(table.Acquire(kBob, 1).ok());
  EXPECT_FALSE(table.CheckHeld(kAlice, {0}, "slots").ok());
  table.ReleaseAll(kAlice);
  EXPECT_EQ(table.free_count(), 0) << "its release is still under way";
  table.FinishRelease({0});
  EXPECT_TRUE(table.Acquire(kBob, 1).ok());
}

TEST(SlotTableTest, ReleaseAllFreesTheSessionsSlotsOnly) {
  SlotTable table(1, 4);
  ASSERT_TRUE(table.Acquire(kAlice, 2).ok());
  ASSERT_TRUE(table.Acquire(kBob, 1).ok());
  table.ReleaseAll(kAlice);
  table.ReleaseAll(kAlice);
  EXPECT_EQ(table.counts().free, 3);
  EXPECT_EQ(table.counts().held, 1);
  EXPECT_TRUE(table.CheckHeld(kBob, {2}, "slots").ok());
}

TEST(SlotTableTest, WhatIsLookedThroughPieceByPieceIsAllOfIt) {
  constexpr std::int64_t kSlots = 50'000;
  SlotTable table(/*layers=*/3, kSlots);
  std::int64_t held = 0;
  for (SessionKey session = 1; held < kSlots; session = 3 - session) held += std::ssize(*table.Acquire(session, 1'000));
  const std::vector<SlotTable::Held> all = table.ListHeld();
  ASSERT_EQ(std::ssize(all), kSlots);
  for (std::int64_t slot = 0; slot < kSlots; ++slot) ASSERT_EQ(all[slot].slot, slot);
  table.ReleaseAll(1);
  EXPECT_EQ(table.free_count(), kSlots / 2);
  const std::vector<SlotTable::Held> rest = table.ListHeld();
  ASSERT_EQ(std::ssize(rest), kSlots / 2);
  for (const SlotTable::Held& entry : rest) ASSERT_EQ(entry.session, 2u);
}

TEST(SlotTableTest, PositionsStartAtZeroForEachOwner) {
  SlotTable table(2, 2);
  ASSERT_TRUE(table.Acquire(kAlice, 2).ok());
  table.SetPosition(0, 1, 64);
  table.SetPosition(1, 1, 100);
  EXPECT_EQ(table.Position(0, 1), 64);
  EXPECT_EQ(table.Position(1, 1), 100);
  EXPECT_EQ(table.Position(0, 0), 0);
  const std::vector<SlotTable::Held> held = table.ListHeld();
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0].slot, 0);
  EXPECT_EQ(held[1].slot, 1);
  EXPECT_EQ(held[1].session, kAlice);
  EXPECT_EQ(held[1].min_position, 64);
  EXPECT_EQ(held[1].max_position, 100);
  table.ReleaseAll(kAlice);
  EXPECT_TRUE(table.ListHeld().empty());
  ASSERT_TRUE(table.Acquire(kBob, 2).ok());
  EXPECT_EQ(table.Position(0, 1), 0);
  EXPECT_EQ(table.Position(1, 1), 0);
}

TEST(SlotTableTest, ManyThreadsNeverShareASlotNorLoseOne) {
  constexpr std::int64_t kSlots = 64;
  constexpr int kThreads = 8;
  SlotTable table(2, kSlots);
  std::vector<std::thread> threads;
  for (int n = 0; n < kThreads; ++n) {
    threads.emplace_back([&table, n] {
      const SessionKey session = n + 1;
      for (int round = 0; round < 500; ++round) {
        const absl::StatusOr<std::vector<std::int64_t>> slots = table.Acquire(session, 1 + (round + n) % 16);
        if (!slots.ok()) continue;
        for (const std::int64_t slot : *slots) table.SetPosition(1, slot, n);
        for (const std::int64_t slot : *slots) EXPECT_EQ(table.Position(1, slot), n);
        if (round % 2 == 0) {
          EXPECT_TRUE(table.BeginRelease(session, *slots, "slots").ok());
          table.FinishRelease(*slots);
        } else {
          table.ReleaseAll(session);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.counts().free, kSlots);
  EXPECT_EQ(table.counts().held, 0);
}

}  // namespace
}  // namespace gdpcache::cache
