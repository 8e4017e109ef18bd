#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/errors.h"
#include "tests/unit/cache/snapshots/snapshot_world.h"

/// Pins, leases and quotas: what a tenant may keep, and what it may not.
namespace gdpcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SessionKey kSession = 1;

bool IsPinned(SnapshotWorld& world, std::int64_t number) {
  for (const SnapshotSummary& summary : world.store->List(TestSpace(), "", 1'000)) {
    if (summary.key == Key(number)) return summary.pinned;
  }
  return false;
}

TEST(SnapshotPinsTest, WhatIsPinnedIsNotEvictedUntilItsPinEnds) {
  SnapshotWorld world({.device = 3});
  world.StoreMany(1, 3);
  const absl::StatusOr<SnapshotStore::Pinned> pin = world.Pin({1, 2}, absl::Minutes(1));
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ(pin->ttl, absl::Minutes(1));
  EXPECT_TRUE(IsPinned(world, 1));
  EXPECT_FALSE(IsPinned(world, 3));
  world.StoreMany(4, 5);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2, 5));
  ASSERT_TRUE(world.store->Unpin(TestSpace(), pin->pin).ok());
  EXPECT_FALSE(IsPinned(world, 1));
  world.StoreMany(6, 6);
  EXPECT_THAT(world.Numbers(9), ElementsAre(2, 5, 6));
}

TEST(SnapshotPinsTest, WithEverythingPinnedThereIsNoSpaceButNoHarm) {
  SnapshotWorld world({.device = 2});
  world.StoreMany(1, 2);
  ASSERT_TRUE(world.Pin({1, 2}, absl::Minutes(1)).ok());
  EXPECT_EQ(world.Store(3).result, SnapshotResult::kNoSpace);
  EXPECT_EQ(world.StorePart(kSession, 3, 64, 0)->result, SnapshotResult::kNoSpace);
  EXPECT_TRUE(world.Fetch(1).ok());
  world.clock.Advance(absl::Minutes(1));
  world.store->Expire();
  EXPECT_EQ(world.Store(3).result, SnapshotResult::kStored);
}

TEST(SnapshotPinsTest, PinsEndByTheClock) {
  SnapshotWorld world({.device = 3});
  world.StoreMany(1, 1);
  const absl::StatusOr<SnapshotStore::Pinned> first = world.Pin({1}, absl::Minutes(1));
  const absl::StatusOr<SnapshotStore::Pinned> second = world.Pin({1}, absl::Minutes(2));
  ASSERT_TRUE(first.ok() && second.ok());
  world.clock.Advance(absl::Minutes(1));
  world.store->Expire();
  EXPECT_TRUE(absl::IsNotFound(world.store->Unpin(TestSpace(), first->pin)));
  EXPECT_TRUE(IsPinned(world, 1));
  world.clock.Advance(absl::Minutes(1));
  world.store->Expire();
  EXPECT_FALSE(IsPinned(world, 1));
  EXPECT_TRUE(absl::IsNotFound(world.store->Unpin(TestSpace(), second->pin)));
}

TEST(SnapshotPinsTest, TheTimeToLiveIsAtMostTheServers) {
  SnapshotWorld world({.device = 3});
  world.StoreMany(1, 1);
  EXPECT_EQ(world.Pin({1}, absl::ZeroDuration())->ttl, absl::Minutes(10));
  EXPECT_EQ(world.Pin({1}, absl::Hours(100))->ttl, absl::Minutes(10));
}

TEST(SnapshotPinsTest, ReleasingTwiceIsAnErrorAndChangesNothing) {
  SnapshotWorld world({.device = 3});
  world.StoreMany(1, 1);
  const absl::StatusOr<SnapshotStore::Pinned> first = world.Pin({1}, absl::Minutes(1));
  const absl::StatusOr<SnapshotStore::Pinned> second = world.Pin({1, 1}, absl::Minutes(1));
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(world.store->Unpin(TestSpace(), first->pin).ok());
  EXPECT_TRUE(absl::IsNotFound(world.store->Unpin(TestSpace(), first->pin)));
  EXPECT_TRUE(IsPinned(world, 1));
  ASSERT_TRUE(world.store->Unpin(TestSpace(), second->pin).ok());
  EXPECT_FALSE(IsPinned(world, 1));
}

TEST(SnapshotPinsTest, PinsAreTheirTenantsOwn) {
  SnapshotWorld world({.device = 3});
  world.StoreMany(1, 1);
  world.StoreMany(1, 1, TestSpace("other"));
  const absl::StatusOr<SnapshotStore::Pinned> pin = world.Pin({1}, absl::Minutes(1));
  ASSERT_TRUE(pin.ok());
  EXPECT_TRUE(absl::IsNotFound(world.store->Unpin(TestSpace("other"), pin->pin)));
  EXPECT_TRUE(absl::IsNotFound(world.store->Unpin(TestSpace("nobody"), pin->pin)));
  EXPECT_TRUE(IsPinned(world, 1));
}

TEST(SnapshotPinsTest, AllKeysArePinnedOrNone) {
  SnapshotWorld world({.device = 3});
  world.StoreMany(1, 2);
  const absl::Status status = world.Pin({1, 2, 3}, absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("keys[2]"));
  EXPECT_FALSE(IsPinned(world, 1));
  EXPECT_TRUE(absl::IsInvalidArgument(world.Pin({}, absl::Minutes(1)).status()));
}

TEST(SnapshotPinsTest, WhatIsPinnedIsDeletedOnlyByForce) {
  SnapshotWorld world({.device = 3});
  world.StoreMany(1, 2);
  ASSERT_TRUE(world.Pin({2}, absl::Minutes(1)).ok());
  const absl::Status status = world.Delete({1, 2}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("keys[1] is pinned"));
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2));
  EXPECT_EQ(*world.Delete({1, 2}, /*force=*/true), 2);
  EXPECT_EQ(world.used(TierKind::kDevice), 0);
}

TEST(SnapshotPinsTest, APinOutlivesTheSnapshotThatForceHasDeleted) {
  SnapshotWorld::Setup setup{.device = 3};
  setup.options.limits.pinned_bytes = kSnapshotBytes;
  SnapshotWorld world(std::move(setup));
  world.StoreMany(1, 1);
  const absl::StatusOr<SnapshotStore::Pinned> pin = world.Pin({1}, absl::Minutes(1));
  ASSERT_TRUE(pin.ok());
  ASSERT_EQ(*world.Delete({1}, /*force=*/true), 1);
  world.StoreMany(1, 1);
  EXPECT_FALSE(IsPinned(world, 1));  // it is another one
  EXPECT_TRUE(world.Pin({1}, absl::Minutes(1)).ok()) << "the budget came back with the deletion";
  EXPECT_TRUE(world.store->Unpin(TestSpace(), pin->pin).ok());
  EXPECT_TRUE(IsPinned(world, 1));
}

TEST(SnapshotPinsTest, TheBudgetCountsEverySnapshotOnce) {
  SnapshotWorld::Setup setup{.device = 9};
  setup.options.limits.pinned_bytes = 2 * kSnapshotBytes;
  SnapshotWorld world(std::move(setup));
  world.StoreMany(1, 3);
  world.StoreMany(1, 1, TestSpace("other"));
  ASSERT_TRUE(world.Pin({1, 2}, absl::Minutes(1)).ok());
  ASSERT_TRUE(world.Pin({1, 2}, absl::Minutes(1)).ok());
  const absl::Status status = world.Pin({1, 3}, absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("pin budget: 1024 bytes are needed; 2048 of 2048 are in use"));
  EXPECT_TRUE(RetryAfterOf(status).has_value());
  EXPECT_TRUE(world.Pin({1}, absl::Minutes(1), TestSpace("other")).ok());
}

TEST(SnapshotPinsTest, TheNumberOfPinsIsBounded) {
  SnapshotWorld::Setup setup{.device = 9};
  setup.options.limits.max_pins = 3;
  SnapshotWorld world(std::move(setup));
  world.StoreMany(1, 2);
  ASSERT_TRUE(world.Pin({1, 2}, absl::Minutes(1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(world.Pin({1, 2}, absl::Minutes(1)).status()));
  EXPECT_NE(world.Lookup({1}, absl::Seconds(1))->pin, "");
  EXPECT_EQ(world.Lookup({1}, absl::Seconds(1))->pin, "");
}

TEST(SnapshotPinsTest, ALeaseKeepsWhatWasFound) {
  SnapshotWorld world({.device = 2});
  world.StoreMany(1, 2);
  const std::optional<SnapshotStore::Lookup> lookup = world.Lookup({1, 7}, absl::Seconds(30));
  ASSERT_TRUE(lookup.has_value());
  EXPECT_EQ(lookup->index, 0);
  EXPECT_TRUE(lookup->snapshot.pinned);
  world.StoreMany(3, 5);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 5));
  ASSERT_TRUE(world.store->Unpin(TestSpace(), lookup->pin).ok());
  world.StoreMany(6, 6);
  EXPECT_THAT(world.Numbers(9), ElementsAre(5, 6));
}

TEST(SnapshotPinsTest, ALeaseWithoutBudgetIsAnAnswerWithoutPin) {
  SnapshotWorld::Setup setup{.device = 2};
  setup.options.limits.pinned_bytes = kSnapshotBytes - 1;
  SnapshotWorld world(std::move(setup));
  world.StoreMany(1, 1);
  const std::optional<SnapshotStore::Lookup> lookup = world.Lookup({1}, absl::Seconds(30));
  ASSERT_TRUE(lookup.has_value());
  EXPECT_EQ(lookup->pin, "");
  EXPECT_FALSE(lookup->snapshot.pinned);
}

TEST(SnapshotPinsTest, WhatIsPinnedMovesBetweenTiersButNeverOutOfTheLast) {
  SnapshotWorld world({.device = 2, .host = 2, .high = 0.5, .low = 0.5});
  world.StoreMany(1, 1);
  ASSERT_TRUE(world.Pin({1}, absl::Minutes(10)).ok());
  world.StoreMany(2, 6);
  EXPECT_THAT(world.Tiers(1), ElementsAre(TierKind::kHost));
  EXPECT_TRUE(world.Has(6));
  EXPECT_TRUE(world.Holds((*world.Fetch(1))->parts(), 1));
}

// Quotas.

TEST(SnapshotQuotaTest, ATenantBeyondItsQuotaLosesItsOwnLeastRecentlyUsed) {
  SnapshotWorld::Setup setup{.device = 100};
  setup.options.limits.tenant_bytes = 3 * kSnapshotBytes;
  SnapshotWorld world(std::move(setup));
  world.StoreMany(1, 3, TestSpace("a"));
  world.StoreMany(1, 3, TestSpace("b"));
  ASSERT_TRUE(world.Fetch(1, TestSpace("b")).ok());
  world.StoreMany(4, 5, TestSpace("b"));
  EXPECT_THAT(world.Numbers(9, TestSpace("a")), ElementsAre(1, 2, 3));
  EXPECT_THAT(world.Numbers(9, TestSpace("b")), ElementsAre(1, 4, 5));
}

TEST(SnapshotQuotaTest, TheQuotaIsOfAllSpacesOfATenant) {
  SnapshotWorld::Setup setup{.device = 100};
  setup.options.limits.tenant_bytes = 3 * kSnapshotBytes;
  SnapshotWorld world(std::move(setup));
  SnapshotSpace other = TestSpace();
  other.fingerprint = "model@2";
  world.StoreMany(1, 2);
  world.StoreMany(1, 2, other);
  EXPECT_THAT(world.Numbers(9), ElementsAre(2));
  EXPECT_THAT(world.Numbers(9, other), ElementsAre(1, 2));
}

TEST(SnapshotQuotaTest, WhatIsBeingPutTogetherCounts) {
  SnapshotWorld::Setup setup{.device = 100};
  setup.options.limits.tenant_bytes = 2 * kSnapshotBytes;
  SnapshotWorld world(std::move(setup));
  ASSERT_EQ(world.StorePart(kSession, 1, 64, 0)->result, SnapshotResult::kPending);
  ASSERT_EQ(world.StorePart(kSession, 2, 64, 0)->result, SnapshotResult::kPending);
  absl::StatusOr<SnapshotOutcome> outcome = world.StorePart(kSession, 3, 64, 0);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->result, SnapshotResult::kNoSpace);
  EXPECT_THAT(outcome->message, HasSubstr("the tenant's quota: 1024 bytes are needed; 2048 of 2048 are in use"));
  EXPECT_EQ(world.Store(4).result, SnapshotResult::kNoSpace);
  EXPECT_EQ(world.StorePart(kSession, 1, 64, 1)->result, SnapshotResult::kStored);
  // Its other layer is not tried before the first one comes again.
  EXPECT_EQ(world.StorePart(kSession, 3, 64, 1)->result, SnapshotResult::kNoSpace);
  EXPECT_EQ(world.StoreParts(kSession, 3).result, SnapshotResult::kStored);
  EXPECT_FALSE(world.Has(1));
  world.store->EndSession(kSession);
  EXPECT_EQ(world.Store(4).result, SnapshotResult::kStored);
  EXPECT_THAT(world.Numbers(9), ElementsAre(3, 4));
}

TEST(SnapshotQuotaTest, WhatIsPinnedOrReadDoesNotGiveWay) {
  SnapshotWorld::Setup setup{.device = 100};
  setup.options.limits.tenant_bytes = 3 * kSnapshotBytes;
  SnapshotWorld world(std::move(setup));
  world.StoreMany(1, 3);
  ASSERT_TRUE(world.Pin({1}, absl::Minutes(1)).ok());
  const absl::StatusOr<std::shared_ptr<const TierCopy>> reader = world.Fetch(2);
  world.StoreMany(4, 4);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2, 4));
}

TEST(SnapshotQuotaTest, ASnapshotLargerThanTheQuotaEvictsNobody) {
  SnapshotWorld::Setup setup{.device = 100};
  setup.options.limits.tenant_bytes = 2 * kSnapshotBytes;
  SnapshotWorld world(std::move(setup));
  world.StoreMany(1, 2);
  SnapshotSpace large = TestSpace();
  large.layers = 5;
  EXPECT_EQ(world.Store(3, 64, large).result, SnapshotResult::kNoSpace);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2));
}

TEST(SnapshotQuotaTest, EverySnapshotCountsOnceWhateverItsTiers) {
  SnapshotWorld::Setup setup{.device = 10, .disk = 10};
  setup.options.limits.tenant_bytes = 3 * kSnapshotBytes;
  setup.options.write_policy = WritePolicy::kWriteThrough;
  SnapshotWorld world(std::move(setup));
  world.StoreMany(1, 3);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2, 3));
  world.StoreMany(4, 4);
  EXPECT_THAT(world.Numbers(9), ElementsAre(2, 3, 4));
  EXPECT_EQ(world.disk->copies(), 3);
}

}  // namespace
}  // namespace gdpcache::cache
