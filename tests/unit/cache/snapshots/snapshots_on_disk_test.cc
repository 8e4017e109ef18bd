#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/snapshots/gate.h"
#include "tests/unit/cache/snapshots/snapshot_world.h"

/// When a store's snapshots are written to the disk behind its other tiers, leave it, and are found there again.
namespace gdpcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using TierOperation = test::FaultInjectingTier::Operation;

constexpr TierKind kDevice = TierKind::kDevice;
constexpr TierKind kHost = TierKind::kHost;
constexpr TierKind kDisk = TierKind::kDisk;

// Writing to disk.

TEST(SnapshotTiersTest, WriteThroughWritesRightAfterPublishing) {
  SnapshotWorld world({.device = 10, .host = 10, .disk = 100, .options = SnapshotWorld::WriteThrough()});
  world.StoreMany(1, 3);
  EXPECT_EQ(world.disk->copies(), 3);
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDevice, kDisk));
}

TEST(SnapshotTiersTest, WriteBackWritesNothingByItself) {
  SnapshotWorld world({.device = 10, .disk = 100});
  world.StoreMany(1, 3);
  EXPECT_EQ(world.disk->calls(TierOperation::kStore), 0);
}

TEST(SnapshotTiersTest, ADiskInTroubleNeverFailsAPublish) {
  SnapshotWorld world({.device = 10, .disk = 100, .options = SnapshotWorld::WriteThrough()});
  world.disk->FailAfter(TierOperation::kStore, 0, absl::UnavailableError("input/output error"), /*repeats=*/true);
  world.StoreMany(1, 3);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2, 3));
  EXPECT_EQ(world.store->counters().tier_errors, 3);
  world.disk->FailNoMore(TierOperation::kStore);
  const SnapshotStore::Flushed flushed = world.store->Flush(absl::Seconds(60));
  EXPECT_EQ(flushed.written, 3);
  EXPECT_EQ(flushed.left, 0);
}

TEST(SnapshotTiersTest, AFullDiskLosesItsLeastRecentlyUsedCopies) {
  SnapshotWorld world({.device = 10, .disk = 3, .options = SnapshotWorld::WriteThrough()});
  world.StoreMany(1, 5);
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDevice));
  EXPECT_THAT(world.Tiers(3), ElementsAre(kDevice, kDisk));
  EXPECT_THAT(world.Tiers(5), ElementsAre(kDevice, kDisk));
  EXPECT_EQ(world.disk->copies(), 3);
  EXPECT_EQ(world.store->counters().evicted, 0);
}

TEST(SnapshotTiersTest, ADiskFullForOtherReasonsIsNotEmptiedInVain) {
  SnapshotWorld world({.device = 10, .disk = 100, .options = SnapshotWorld::WriteThrough()});
  world.StoreMany(1, 5);
  world.disk->FailAfter(TierOperation::kStore, 0, absl::ResourceExhaustedError("no space left on device"), true);
  world.StoreMany(6, 6);
  EXPECT_EQ(world.disk->copies(), 4);  // one had to go to find out
  EXPECT_EQ(world.disk->calls(TierOperation::kStore), 5 + 2);
  EXPECT_EQ(world.store->counters().tier_errors, 1);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(SnapshotTiersTest, FlushWritesTheMostRecentlyUsedFirst) {
  SnapshotWorld world({.device = 10, .host = 10, .disk = 100});
  world.StoreMany(1, 5);
  ASSERT_TRUE(world.Fetch(2).ok());
  world.disk->FailAfter(TierOperation::kStore, 2, absl::UnavailableError("input/output error"), /*repeats=*/true);
  SnapshotStore::Flushed flushed = world.store->Flush(absl::Seconds(60));
  EXPECT_EQ(flushed.written, 2);
  EXPECT_EQ(flushed.left, 3);
  EXPECT_THAT(world.Tiers(2), ElementsAre(kDevice, kDisk));
  EXPECT_THAT(world.Tiers(5), ElementsAre(kDevice, kDisk));
  world.disk->FailNoMore(TierOperation::kStore);
  flushed = world.store->Flush(absl::Seconds(60));
  EXPECT_EQ(flushed.written, 3);
  EXPECT_EQ(flushed.left, 0);
  EXPECT_EQ(world.disk->copies(), 5);
}

TEST(SnapshotTiersTest, ASmallDiskKeepsTheMostRecentlyUsed) {
  SnapshotWorld world({.device = 10, .disk = 3});
  world.StoreMany(1, 5);
  const SnapshotStore::Flushed flushed = world.store->Flush(absl::Seconds(60));
  EXPECT_EQ(flushed.written, 3);
  EXPECT_EQ(flushed.left, 2);
  EXPECT_THAT(world.Tiers(2), ElementsAre(kDevice));
  for (const std::int64_t number : {3, 4, 5}) EXPECT_THAT(world.Tiers(number), ElementsAre(kDevice, kDisk));
  EXPECT_EQ(world.store->counters().tier_errors, 0);
  EXPECT_THAT(world.log(), IsEmpty());
}

TEST(SnapshotTiersTest, FlushEndsWhenItsTimeIsOver) {
  SnapshotWorld world({.device = 10, .disk = 100});
  world.StoreMany(1, 3);
  Gate gate;
  world.disk->BeforeEach(TierOperation::kStore, gate.Pass());
  const SnapshotStore::Flushed flushed = world.store->Flush(absl::Milliseconds(1));
  EXPECT_EQ(flushed.written, 0);
  EXPECT_EQ(flushed.left, 3);
  gate.Open();
  world.store->WaitUntilIdle();
  EXPECT_LE(world.disk->copies(), 1);  // the rest is not written any more
}

// Removing and recovering.

TEST(SnapshotTiersTest, DeletingRemovesEveryCopy) {
  SnapshotWorld world(
      {.device = 4, .host = 4, .disk = 100, .high = 0.5, .low = 0.5, .options = SnapshotWorld::WriteThrough()});
  world.StoreMany(1, 3);
  EXPECT_EQ(*world.Delete({1, 2, 3}), 3);
  world.store->WaitUntilIdle();
  EXPECT_EQ(world.used(kDevice), 0);
  EXPECT_EQ(world.used(kHost), 0);
  EXPECT_EQ(world.used(kDisk), 0);
  EXPECT_EQ(world.disk->copies(), 0);
}

TEST(SnapshotTiersTest, ADeletionIsOverWhenTheDiskHasForgotten) {
  SnapshotWorld world({.device = 4, .disk = 100, .options = SnapshotWorld::WriteThrough()});
  world.StoreMany(1, 1);
  EXPECT_EQ(*world.Delete({1}), 1);
  std::promise<std::int64_t> left;
  world.store->AfterDeletions([&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    left.set_value(world.disk->copies());
  });
  EXPECT_EQ(left.get_future().get(), 0);
  EXPECT_EQ(world.disk->calls(TierOperation::kSyncRemovals), 1);
}

TEST(SnapshotTiersTest, ADeletionWaitsForTheWriteThatItCameTooLateFor) {
  SnapshotWorld world({.device = 4, .disk = 100, .options = SnapshotWorld::WriteThrough()});
  Gate gate;
  world.disk->BeforeEach(TierOperation::kStore, gate.Pass());
  ASSERT_EQ(world.Store(1).result, SnapshotResult::kStored);
  gate.WaitUntilReached();
  EXPECT_EQ(*world.Delete({1}), 1);
  std::promise<std::int64_t> removed;
  world.store->AfterDeletions(
      [&](const absl::Status&) { removed.set_value(world.disk->calls(TierOperation::kRemove)); });
  gate.Open();
  EXPECT_EQ(removed.get_future().get(), 1);
}

TEST(SnapshotTiersTest, ADeletionThatTheDiskMayUndoSaysSo) {
  SnapshotWorld world({.device = 4, .disk = 100, .options = SnapshotWorld::WriteThrough()});
  world.disk->FailAfter(TierOperation::kSyncRemovals, 0, absl::UnavailableError("/a/path: broken"));
  std::promise<absl::Status> told;
  world.store->AfterDeletions([&](const absl::Status& status) { told.set_value(status); });
  const absl::Status status = told.get_future().get();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), testing::Not(testing::HasSubstr("/a/path")));
}

TEST(SnapshotTiersTest, WithoutADiskADeletionIsOverAtOnce) {
  SnapshotWorld world({.device = 4});
  bool over = false;
  world.store->AfterDeletions([&](const absl::Status& status) { over = status.ok(); });
  EXPECT_TRUE(over);
}

TEST(SnapshotTiersTest, WhatIsDeletedWhileItIsWrittenDoesNotStayOnDisk) {
  SnapshotWorld world({.device = 4, .disk = 100, .options = SnapshotWorld::WriteThrough()});
  Gate gate;
  world.disk->BeforeEach(TierOperation::kStore, gate.Pass());
  ASSERT_EQ(world.Store(1).result, SnapshotResult::kStored);
  gate.WaitUntilReached();
  EXPECT_EQ(*world.Delete({1}), 1);
  world.disk->BeforeEach(TierOperation::kStore, {});
  ASSERT_EQ(world.Store(1, 128).result, SnapshotResult::kStored);  // another one of the same key
  gate.Open();
  world.store->WaitUntilIdle();
  EXPECT_EQ(world.disk->copies(), 1);
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDevice, kDisk));
  EXPECT_EQ(world.used(kDevice), kSnapshotBytes);
}

TEST(SnapshotTiersTest, AFetchOfWhatIsDeletedMeanwhileEndsOneWayOrTheOther) {
  SnapshotWorld world({.device = 4, .disk = 100, .high = 0.75, .low = 0.5});
  world.StoreMany(1, 4);
  Gate gate;
  world.disk->BeforeEach(TierOperation::kLoad, gate.Pass());
  std::promise<absl::StatusOr<SnapshotStore::Fetched>> promise;
  world.store->Fetch(TestSpace(), Key(1), [&](auto fetched) { promise.set_value(std::move(fetched)); });
  gate.WaitUntilReached();
  EXPECT_EQ(*world.Delete({1}), 1);
  gate.Open();
  {
    const absl::StatusOr<SnapshotStore::Fetched> fetched = promise.get_future().get();
    EXPECT_TRUE(fetched.ok() ? world.Holds(fetched->copy->parts(), 1) : absl::IsNotFound(fetched.status()));
  }
  promise = {};
  world.store->WaitUntilIdle();
  EXPECT_FALSE(world.Has(1));
  EXPECT_EQ(world.used(kDevice), 2 * kSnapshotBytes);
  EXPECT_EQ(world.store->counters().evicted, 0);
}

TEST(SnapshotTiersTest, FetchesThatAreNotDoneEndWithTheStore) {
  SnapshotWorld world({.device = 1, .disk = 100});
  ASSERT_EQ(world.Store(1).result, SnapshotResult::kStored);
  ASSERT_EQ(world.Store(2).result, SnapshotResult::kNoSpace);
  world.store->WaitUntilIdle();
  Gate gate;
  world.disk->BeforeEach(TierOperation::kLoad, gate.Pass());
  std::promise<absl::StatusOr<SnapshotStore::Fetched>> promise;
  world.store->Fetch(TestSpace(), Key(1), [&](auto fetched) { promise.set_value(std::move(fetched)); });
  gate.WaitUntilReached();
  std::thread end([&] { world.store.reset(); });
  gate.Open();
  const absl::StatusOr<SnapshotStore::Fetched> fetched = promise.get_future().get();
  EXPECT_TRUE(fetched.ok() || absl::IsUnavailable(fetched.status()));
  end.join();
}

/// What a disk tier had from an earlier run.
std::vector<std::pair<SnapshotRecord, std::shared_ptr<TierCopy>>> Earlier(SnapshotWorld& world, std::int64_t count) {
  std::vector<std::pair<SnapshotRecord, std::shared_ptr<TierCopy>>> copies;
  MemoryTier memory(world.backend, kHost, kSnapshotBytes);
  absl::StatusOr<SnapshotMemory> source = memory.Allocate(TestSpace(), 2);
  const std::unique_ptr<kernels::Stream> stream = *world.backend.CreateStream();
  for (std::int64_t number = 1; number <= count; ++number) {
    world.Fill(source->parts(), number);
    const SnapshotRecord record = {TestSpace(), Key(number), 64 * number};
    copies.emplace_back(record, *world.disk->Store(record, source->parts(), *stream));
  }
  return copies;
}

TEST(SnapshotTiersTest, WhatADiskKeptIsFoundAgain) {
  SnapshotWorld world({.device = 4, .disk = 100});
  for (auto& [record, copy] : Earlier(world, 3)) world.store->Recover(record, std::move(copy));
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2, 3));
  EXPECT_EQ(world.store->Find(TestSpace(), Key(3))->position, 192);
  EXPECT_THAT(world.Tiers(3), ElementsAre(kDisk));
  for (const std::int64_t number : {1, 2, 3}) world.ExpectIntact(number);
}

TEST(SnapshotTiersTest, WhatADiskKeptGivesWayInTheOrderOfItsUse) {
  SnapshotWorld world({.device = 4, .disk = 4, .high = 0.75, .low = 0.75, .options = SnapshotWorld::WriteThrough()});
  for (auto& [record, copy] : Earlier(world, 3)) world.store->Recover(record, std::move(copy));
  world.StoreMany(11, 12);
  EXPECT_THAT(world.Numbers(20), ElementsAre(3, 11, 12));
  world.store->WaitUntilIdle();
  EXPECT_EQ(world.disk->copies(), 3);
}

TEST(SnapshotTiersTest, WhatExceedsTheQuotaAfterARestartIsRemoved) {
  SnapshotWorld::Setup setup{.device = 4, .disk = 100};
  setup.options.limits.tenant_bytes = 2 * kSnapshotBytes;
  SnapshotWorld world(std::move(setup));
  for (auto& [record, copy] : Earlier(world, 3)) world.store->Recover(record, std::move(copy));
  world.store->WaitUntilIdle();
  EXPECT_THAT(world.Numbers(9), ElementsAre(2, 3));
  EXPECT_EQ(world.disk->copies(), 2);
}

}  // namespace
}  // namespace gdpcache::cache
