#include <atomic>
#include <cstdint>
#include <future>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/errors.h"
#include "tests/support/eventually.h"
#include "tests/unit/cache/snapshots/gate.h"
#include "tests/unit/cache/snapshots/snapshot_world.h"

/// How copies move between the tiers of a store.
namespace gdpcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using TierOperation = test::FaultInjectingTier::Operation;
using BackendOperation = test::FaultInjectingBackend::Operation;

constexpr TierKind kDevice = TierKind::kDevice;
constexpr TierKind kHost = TierKind::kHost;
constexpr TierKind kDisk = TierKind::kDisk;

// Demotion.

TEST(SnapshotTiersTest, PastTheHighWatermarkTheLeastRecentlyUsedMoveDownToTheLowOne) {
  SnapshotWorld world({.device = 10, .host = 100, .high = 0.8, .low = 0.5});
  world.StoreMany(1, 8);
  EXPECT_EQ(world.used(kDevice), 8 * kSnapshotBytes);
  ASSERT_TRUE(world.Fetch(2).ok());
  world.clock.Advance(absl::Seconds(1));
  world.StoreMany(9, 9);
  EXPECT_EQ(world.used(kDevice), 5 * kSnapshotBytes);
  EXPECT_EQ(world.used(kHost), 4 * kSnapshotBytes);
  for (const std::int64_t number : {1, 3, 4, 5}) EXPECT_THAT(world.Tiers(number), ElementsAre(kHost)) << number;
  for (const std::int64_t number : {2, 6, 7, 8, 9}) EXPECT_THAT(world.Tiers(number), ElementsAre(kDevice)) << number;
  for (std::int64_t number = 1; number <= 9; ++number) world.ExpectIntact(number);
  EXPECT_EQ(world.store->counters().demotions, 4);
  EXPECT_EQ(world.store->counters().evicted, 0);
}

TEST(SnapshotTiersTest, WhatIsInUseMeanwhileMovesWhenItNoLongerIs) {
  SnapshotWorld world({.device = 10, .host = 100, .high = 0.3, .low = 0});
  world.StoreMany(1, 3);
  absl::StatusOr<std::shared_ptr<const TierCopy>> held = world.Fetch(2);
  ASSERT_TRUE(held.ok()) << held.status();
  world.StoreMany(4, 4);
  // Below the high watermark, not yet at the low one. Number 4 may still have been a draft when the others left: it
  // goes when what was in use is tried again.
  EXPECT_TRUE(test::Eventually([&] { return world.used(kDevice) == kSnapshotBytes; }));
  EXPECT_THAT(world.Tiers(2), ElementsAre(kDevice));
  *held = nullptr;
  EXPECT_TRUE(test::Eventually([&] { return world.used(kDevice) == 0; }));
  EXPECT_THAT(world.Tiers(2), ElementsAre(kHost));
}

TEST(SnapshotTiersTest, WithoutAHostTierTheyMoveToDisk) {
  SnapshotWorld world({.device = 4, .disk = 100, .high = 0.75, .low = 0.5});
  world.StoreMany(1, 4);
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDisk));
  EXPECT_THAT(world.Tiers(2), ElementsAre(kDisk));
  EXPECT_THAT(world.Tiers(3), ElementsAre(kDevice));
  for (std::int64_t number = 1; number <= 4; ++number) world.ExpectIntact(number);
}

TEST(SnapshotTiersTest, FullTiersPassThemOnAndTheLastOneEvicts) {
  SnapshotWorld world({.device = 2, .host = 2, .disk = 3, .high = 0.5, .low = 0.5});
  world.StoreMany(1, 9);
  EXPECT_THAT(world.Numbers(20), ElementsAre(7, 8, 9));
  EXPECT_THAT(world.Tiers(7), ElementsAre(kDisk));
  EXPECT_THAT(world.Tiers(8), ElementsAre(kHost));
  EXPECT_THAT(world.Tiers(9), ElementsAre(kDevice));
  EXPECT_EQ(world.disk->copies(), 1);
  EXPECT_EQ(world.store->counters().evicted, 6);
  for (const std::int64_t number : {9, 8, 7}) world.ExpectIntact(number);
}

TEST(SnapshotTiersTest, ACopyIsDroppedAtOnceWhereALowerOneExists) {
  SnapshotWorld world({.device = 4, .disk = 100, .high = 0.75, .low = 0.5, .options = SnapshotWorld::WriteThrough()});
  world.StoreMany(1, 3);
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDevice, kDisk));
  world.StoreMany(4, 4);
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDisk));
  EXPECT_EQ(world.disk->calls(TierOperation::kStore), 4);
}

TEST(SnapshotTiersTest, RoomNeededAtOnceIsTakenFromWhatHasALowerCopy) {
  SnapshotWorld world({.device = 2, .disk = 100, .options = SnapshotWorld::WriteThrough()});
  world.StoreMany(1, 2);
  EXPECT_EQ(world.used(kDevice), 2 * kSnapshotBytes);
  world.StoreMany(3, 5);
  EXPECT_THAT(world.Tiers(3), ElementsAre(kDisk));
  EXPECT_THAT(world.Tiers(5), ElementsAre(kDevice, kDisk));
  EXPECT_EQ(world.store->counters().evicted, 0);
}

TEST(SnapshotTiersTest, RoomNeededAtOnceIsNotTakenFromWhatWouldBeLost) {
  SnapshotWorld world({.device = 2, .host = 10});
  world.StoreMany(1, 2);
  const SnapshotOutcome outcome = world.Store(3);
  EXPECT_EQ(outcome.result, SnapshotResult::kNoSpace);
  EXPECT_THAT(outcome.message, HasSubstr("the device tier: 2 x 512 bytes are needed; 2048 of 2048 are in use"));
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2));
  world.store->WaitUntilIdle();  // meanwhile one has left
  EXPECT_THAT(world.Tiers(1), ElementsAre(kHost));
  EXPECT_EQ(world.Store(3).result, SnapshotResult::kStored);
}

TEST(SnapshotTiersTest, WhatIsBeingReadStaysWhereItIs) {
  SnapshotWorld world({.device = 4, .host = 100, .high = 0.75, .low = 0.5});
  world.StoreMany(1, 3);
  absl::StatusOr<std::shared_ptr<const TierCopy>> first = world.Fetch(1);
  ASSERT_TRUE(first.ok());
  world.clock.Advance(absl::Seconds(1));
  ASSERT_TRUE(world.Fetch(2).ok());
  ASSERT_TRUE(world.Fetch(3).ok());
  world.StoreMany(4, 4);
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDevice));
  EXPECT_TRUE(world.Holds((*first)->parts(), 1));
  EXPECT_EQ(world.used(kDevice), 2 * kSnapshotBytes);
}

TEST(SnapshotTiersTest, WhereNothingCanBeCopiedToTheLastTierTheLeastRecentlyUsedAreEvicted) {
  SnapshotWorld world({.device = 4, .disk = 100, .high = 0.75, .low = 0.5});
  world.disk->FailAfter(TierOperation::kStore, 0, absl::UnavailableError("input/output error"), /*repeats=*/true);
  world.StoreMany(1, 4);
  EXPECT_THAT(world.Numbers(9), ElementsAre(3, 4));
  EXPECT_EQ(world.store->counters().tier_errors, 2);
  ASSERT_THAT(world.log(), SizeIs(1));  // until it works again
  EXPECT_THAT(world.log()[0], HasSubstr("the disk tier takes no more snapshots: UNAVAILABLE: input/output error"));
  world.disk->FailNoMore(TierOperation::kStore);
  world.StoreMany(5, 8);
  EXPECT_THAT(world.Numbers(9), ElementsAre(3, 4, 5, 6, 7, 8));
}

TEST(SnapshotTiersTest, AFailedCopyToHostIsCountedAndTheSnapshotStays) {
  SnapshotWorld world({.device = 8, .host = 8, .disk = 8, .high = 0.5, .low = 0.25});
  world.StoreMany(1, 4);
  world.backend.FailAfter(BackendOperation::kCopyBytes, 0, absl::InternalError("a bad copy"));
  world.StoreMany(5, 5);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(world.store->counters().tier_errors, 1);
  world.StoreMany(6, 6);  // tries again, if it has not done so
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_LE(world.used(kDevice), 3 * kSnapshotBytes);
}

// Loading and promotion.

TEST(SnapshotTiersTest, WhatIsOnDiskIsLoadedIntoTheHostTier) {
  SnapshotWorld world({.device = 2, .host = 2, .disk = 100, .high = 0.5, .low = 0.5});
  world.StoreMany(1, 3);
  ASSERT_THAT(world.Tiers(1), ElementsAre(kDisk));
  world.ExpectIntact(1);
  EXPECT_THAT(world.Tiers(1), ElementsAre(kHost, kDisk));
  EXPECT_EQ(world.store->counters().promotions, 1);
}

TEST(SnapshotTiersTest, WithoutAHostTierItIsLoadedIntoTheDeviceTier) {
  SnapshotWorld world({.device = 4, .disk = 100, .high = 0.75, .low = 0.5});
  world.StoreMany(1, 4);
  ASSERT_THAT(world.Tiers(1), ElementsAre(kDisk));
  world.ExpectIntact(1);
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDevice, kDisk));
}

TEST(SnapshotTiersTest, ConcurrentFetchesShareOneLoad) {
  SnapshotWorld world({.device = 4, .disk = 100, .high = 0.75, .low = 0.5});
  world.StoreMany(1, 4);
  Gate gate;
  world.disk->BeforeEach(TierOperation::kLoad, gate.Pass());
  std::vector<std::promise<absl::StatusOr<SnapshotStore::Fetched>>> fetches(5);
  for (auto& fetch : fetches) {
    world.store->Fetch(TestSpace(), Key(1), [&](auto fetched) { fetch.set_value(std::move(fetched)); });
  }
  gate.WaitUntilReached();
  gate.Open();
  for (auto& fetch : fetches) {
    const absl::StatusOr<SnapshotStore::Fetched> fetched = fetch.get_future().get();
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    EXPECT_TRUE(world.Holds(fetched->copy->parts(), 1));
    EXPECT_EQ(fetched->position, 64);
  }
  EXPECT_EQ(world.disk->calls(TierOperation::kLoad), 1);
}

TEST(SnapshotTiersTest, TenantsTakeTurnsAtTheDisk) {
  SnapshotWorld world({.device = 20, .disk = 100, .high = 0.2, .low = 0.1});
  constexpr std::int64_t kMany = 12;  // of them eight, at least, are on disk alone
  constexpr std::int64_t kLoaders = 2;
  const SnapshotSpace other = TestSpace("other");
  ASSERT_EQ(world.Store(1, 64, other).result, SnapshotResult::kStored);
  world.StoreMany(1, kMany);
  ASSERT_THAT(world.Tiers(1, other), ElementsAre(kDisk));

  std::counting_semaphore permits(0);
  std::counting_semaphore arrivals(0);
  world.disk->BeforeEach(TierOperation::kLoad, [&] {
    arrivals.release();
    permits.acquire();
  });
  std::atomic<bool> came = false;
  for (std::int64_t number = 1; number <= kMany; ++number) {
    world.store->Fetch(TestSpace(), Key(number), [](const auto& fetched) { EXPECT_TRUE(fetched.ok()); });
  }
  world.store->Fetch(other, Key(1), [&came](const auto& fetched) { came = fetched.ok(); });
  // Each loader has begun with one of those who wait for many; of the next two, one is the other's.
  permits.release(2 * kLoaders);
  for (std::int64_t n = 0; n < 3 * kLoaders; ++n) arrivals.acquire();
  EXPECT_TRUE(came);
  permits.release(kMany);
  world.store->WaitUntilIdle();
}

TEST(SnapshotTiersTest, ADamagedSnapshotIsDroppedAndTold) {
  SnapshotWorld world({.device = 4, .disk = 100, .high = 0.75, .low = 0.5});
  world.StoreMany(1, 4);
  world.disk->FailAfter(TierOperation::kLoad, 0, absl::DataLossError("the checksum differs"));
  const absl::StatusOr<std::unique_ptr<SnapshotWatch>> watch = world.store->Watch(TestSpace(), false, [] {});
  ASSERT_TRUE(watch.ok());
  EXPECT_TRUE(absl::IsDataLoss(world.Fetch(1).status()));
  EXPECT_TRUE(absl::IsNotFound(world.Fetch(1).status()));
  const std::vector<SnapshotEvent> events = *(*watch)->Take();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].type, SnapshotEvent::Type::kEvicted);
  EXPECT_EQ(events[0].key, Key(1));
  EXPECT_EQ(world.store->counters().checksum_failures, 1);
  EXPECT_EQ(world.store->counters().tier_errors, 0);
  ASSERT_THAT(world.log(), SizeIs(1));
  EXPECT_THAT(world.log()[0], HasSubstr("the checksum differs"));
  world.store->WaitUntilIdle();
  EXPECT_EQ(world.disk->copies(), 1);
  EXPECT_EQ(world.Store(1).result, SnapshotResult::kStored);
  world.ExpectIntact(1);
}

TEST(SnapshotTiersTest, WhatCannotBeReadIsAMissAndDropped) {
  SnapshotWorld world({.device = 4, .disk = 100, .high = 0.75, .low = 0.5});
  world.StoreMany(1, 4);
  world.disk->FailAfter(TierOperation::kLoad, 0, absl::InternalError("input/output error"));
  EXPECT_TRUE(absl::IsNotFound(world.Fetch(1).status()));
  EXPECT_FALSE(world.Has(1));
  EXPECT_EQ(world.store->counters().tier_errors, 1);
  EXPECT_EQ(world.store->counters().checksum_failures, 0);
  world.ExpectIntact(2);
}

TEST(SnapshotTiersTest, WhatCannotBeReadNowStaysForAnotherTime) {
  SnapshotWorld world({.device = 4, .disk = 100, .high = 0.75, .low = 0.5});
  world.StoreMany(1, 4);
  const std::int64_t on_disk = world.disk->copies();
  world.disk->FailAfter(TierOperation::kLoad, 0, absl::UnavailableError("too many open files"));
  EXPECT_TRUE(absl::IsUnavailable(world.Fetch(1).status()));
  EXPECT_EQ(world.store->counters().tier_errors, 1);
  EXPECT_EQ(world.store->counters().evicted, 0);
  world.store->WaitUntilIdle();
  EXPECT_EQ(world.disk->copies(), on_disk);
  world.ExpectIntact(1);
}

TEST(SnapshotTiersTest, WhatIsLargerThanATierTakesNoRoomFromOthers) {
  SnapshotSpace large = TestSpace();
  large.layers = 10;  // of 512 bytes, in tiers of 4,096
  for (const bool quota : {false, true}) {
    SnapshotOptions options = SnapshotWorld::WriteThrough();
    if (quota) options.limits.tenant_bytes = 6 * kSnapshotBytes;
    SnapshotWorld world({.device = 4, .disk = 100, .options = options});
    world.StoreMany(1, 4);
    for (std::int64_t layer = 0; layer < large.layers; ++layer) {
      const absl::StatusOr<SnapshotOutcome> outcome = world.StorePart(1, 9, 64, layer, large);
      ASSERT_TRUE(outcome.ok());
      EXPECT_EQ(outcome->result, SnapshotResult::kNoSpace);
      EXPECT_EQ(outcome->message, "the device tier: a snapshot takes 5120 bytes; all of the tier are 4096");
    }
    EXPECT_EQ(world.Store(9, 64, large).result, SnapshotResult::kNoSpace);
    world.store->WaitUntilIdle();
    for (std::int64_t number = 1; number <= 4; ++number) {
      EXPECT_THAT(world.Tiers(number), ElementsAre(kDevice, kDisk)) << number;
    }
  }
}

TEST(SnapshotTiersTest, WhatIsTooLargeToBeLoadedMovesNothingOut) {
  SnapshotWorld world({.device = 4, .disk = 100, .options = SnapshotWorld::WriteThrough()});
  SnapshotSpace large = TestSpace();
  large.layers = 10;
  MemoryTier memory(world.backend, kHost, 8 * kSnapshotBytes);
  const absl::StatusOr<SnapshotMemory> source = memory.Allocate(large, large.layers);
  const std::unique_ptr<kernels::Stream> stream = *world.backend.CreateStream();
  const SnapshotRecord record = {large, Key(9), 64};  // from a run with a larger tier
  world.store->Recover(record, *world.disk->Store(record, source->parts(), *stream));
  world.StoreMany(1, 4);
  EXPECT_TRUE(absl::IsResourceExhausted(world.Fetch(9, large).status()));
  world.store->WaitUntilIdle();
  EXPECT_TRUE(world.Has(9, large));
  for (std::int64_t number = 1; number <= 4; ++number) {
    EXPECT_THAT(world.Tiers(number), ElementsAre(kDevice, kDisk)) << number;
  }
}

TEST(SnapshotTiersTest, ALoadMakesRoomByMovingOthersDown) {
  SnapshotWorld world({.device = 1, .host = 1, .disk = 100});
  // 1 on disk only, 2 in the host tier only.
  ASSERT_EQ(world.Store(1).result, SnapshotResult::kStored);
  ASSERT_EQ(world.Store(2).result, SnapshotResult::kNoSpace);
  world.store->WaitUntilIdle();
  ASSERT_EQ(world.Store(2).result, SnapshotResult::kStored);
  ASSERT_EQ(world.Store(3).result, SnapshotResult::kNoSpace);
  world.store->WaitUntilIdle();
  ASSERT_THAT(world.Tiers(1), ElementsAre(kDisk));
  ASSERT_THAT(world.Tiers(2), ElementsAre(kHost));
  world.ExpectIntact(1);
  world.store->WaitUntilIdle();
  EXPECT_THAT(world.Tiers(1), ElementsAre(kHost, kDisk));
  EXPECT_THAT(world.Tiers(2), ElementsAre(kDisk));
  world.ExpectIntact(2);
}

TEST(SnapshotTiersTest, ALoadThatFindsNoRoomSaysSo) {
  SnapshotWorld world({.device = 1, .disk = 100});
  ASSERT_EQ(world.Store(1).result, SnapshotResult::kStored);
  ASSERT_EQ(world.Store(2).result, SnapshotResult::kNoSpace);
  world.store->WaitUntilIdle();
  ASSERT_EQ(world.Store(2).result, SnapshotResult::kStored);
  {
    const absl::StatusOr<std::shared_ptr<const TierCopy>> reader = world.Fetch(2);
    const absl::Status status = world.Fetch(1).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the device tier: 2 x 512 bytes are needed"));
    EXPECT_TRUE(RetryAfterOf(status).has_value());
    EXPECT_TRUE(world.Has(1));
  }
  world.ExpectIntact(1);
}

TEST(SnapshotTiersTest, RepeatedUseBringsASnapshotToTheDevice) {
  SnapshotWorld world({.device = 4, .host = 100, .high = 0.75, .low = 0.5});
  world.StoreMany(1, 4);
  ASSERT_THAT(world.Tiers(1), ElementsAre(kHost));
  world.ExpectIntact(1);
  world.store->WaitUntilIdle();
  EXPECT_THAT(world.Tiers(1), ElementsAre(kHost));
  world.ExpectIntact(1);
  world.store->WaitUntilIdle();
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDevice, kHost));
  world.ExpectIntact(1);
  EXPECT_EQ(world.store->counters().promotions, 1);
}

TEST(SnapshotTiersTest, ALeaseBringsASnapshotFromDiskToTheDevice) {
  SnapshotWorld world({.device = 4, .host = 4, .disk = 100, .high = 0.5, .low = 0.5});
  world.StoreMany(1, 6);
  ASSERT_THAT(world.Tiers(1), ElementsAre(kDisk));
  ASSERT_TRUE(world.Lookup({1}).has_value());  // without a lease nothing moves
  world.store->WaitUntilIdle();
  EXPECT_THAT(world.Tiers(1), ElementsAre(kDisk));
  const std::optional<SnapshotStore::Lookup> lookup = world.Lookup({1}, absl::Seconds(10));
  ASSERT_TRUE(lookup.has_value());
  EXPECT_NE(lookup->pin, "");
  EXPECT_TRUE(lookup->snapshot.pinned);
  EXPECT_THAT(lookup->snapshot.tiers, ElementsAre(kDisk));
  world.store->WaitUntilIdle();
  EXPECT_EQ(world.Tiers(1).front(), kDevice);
  world.ExpectIntact(1);
}

TEST(SnapshotTiersTest, AnotherTenantFindsNothingInAnyTier) {
  SnapshotWorld world({.device = 2, .host = 2, .disk = 10, .high = 0.5, .low = 0.5});
  world.StoreMany(1, 3);
  ASSERT_THAT(world.Tiers(1), ElementsAre(kDisk));
  ASSERT_THAT(world.Tiers(2), ElementsAre(kHost));
  ASSERT_THAT(world.Tiers(3), ElementsAre(kDevice));
  const SnapshotSpace other = TestSpace("other");
  ASSERT_EQ(world.Store(9, 64, other).result, SnapshotResult::kStored);  // it has a table of its own
  for (const std::int64_t number : {1, 2, 3}) {
    EXPECT_FALSE(world.Has(number, other));
    EXPECT_TRUE(absl::IsNotFound(world.Fetch(number, other).status()));
    EXPECT_EQ(world.Lookup({number}, absl::Seconds(1), other), std::nullopt);
    EXPECT_TRUE(absl::IsNotFound(world.Pin({number}, absl::Seconds(1), other).status()));
    EXPECT_EQ(*world.Delete({number}, /*force=*/true, other), 0);
    EXPECT_TRUE(world.Has(number));
  }
}

}  // namespace
}  // namespace gdpcache::cache
