#include "server/cache/snapshots/snapshot_store.h"

#include <malloc.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/snapshots/snapshot_world.h"

namespace gdpcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SessionKey kSession = 1;
constexpr SessionKey kOther = 2;

// Making a store.

TEST(SnapshotStoreCreateTest, TiersMustGoFromFastToSlow) {
  SnapshotWorld world({});
  const auto create = [&](std::vector<StoreTier> tiers) {
    return SnapshotStore::Create(world.backend, world.clock, std::move(tiers), SnapshotWorld::DefaultOptions())
        .status();
  };
  const auto memory = [&](TierKind kind) {
    return StoreTier{std::make_unique<MemoryTier>(world.backend, kind, 1'000), 1'000, 500};
  };
  const auto disk = [&] {
    return StoreTier{std::make_unique<test::FaultInjectingTier>(world.backend, 1'000), 1'000, 500};
  };
  const auto list = [](auto... tier) {
    std::vector<StoreTier> tiers;
    (tiers.push_back(std::move(tier)), ...);
    return tiers;
  };
  EXPECT_TRUE(create({}).ok());
  EXPECT_TRUE(create(list(memory(TierKind::kDevice), memory(TierKind::kHost), disk())).ok());
  EXPECT_TRUE(create(list(memory(TierKind::kHost), disk())).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(create(list(memory(TierKind::kHost), memory(TierKind::kDevice)))));
  EXPECT_TRUE(absl::IsInvalidArgument(create(list(memory(TierKind::kHost), memory(TierKind::kHost)))));
  EXPECT_TRUE(absl::IsInvalidArgument(create(list(disk()))));
  std::vector<StoreTier> upside_down = list(memory(TierKind::kHost));
  upside_down[0].low_watermark = 1'001;
  EXPECT_TRUE(absl::IsInvalidArgument(create(std::move(upside_down))));
}

TEST(SnapshotStoreCreateTest, AStoreWithoutTiersKeepsNothing) {
  SnapshotWorld world({});
  EXPECT_EQ(world.Store(1).result, SnapshotResult::kNoSpace);
  const absl::StatusOr<SnapshotOutcome> part = world.StorePart(kSession, 1, 64, 0);
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->result, SnapshotResult::kNoSpace);
  EXPECT_FALSE(world.Has(1));
  EXPECT_EQ(world.Lookup({1}), std::nullopt);
  EXPECT_EQ(world.store->Flush(absl::Seconds(1)).left, 0);
  world.store->WaitUntilIdle();
}

// Parts.

class SnapshotStoreTest : public ::testing::Test {
 protected:
  SnapshotWorld world_{{.device = 100}};
  SnapshotStore& store_ = *world_.store;
};

TEST_F(SnapshotStoreTest, FoundOnlyWhenEveryLayerHasDelivered) {
  absl::StatusOr<SnapshotOutcome> outcome = world_.StorePart(kSession, 1, 64, 1);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->result, SnapshotResult::kPending);
  EXPECT_FALSE(world_.Has(1));
  EXPECT_EQ(world_.Lookup({1}), std::nullopt);
  EXPECT_THAT(store_.List(TestSpace(), "", 10), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(world_.Fetch(1).status()));

  outcome = world_.StorePart(kSession, 1, 64, 0);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->result, SnapshotResult::kStored);
  EXPECT_EQ(outcome->position, 64);
  const absl::StatusOr<std::shared_ptr<const TierCopy>> copy = world_.Fetch(1);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_TRUE(world_.Holds((*copy)->parts(), 1));
  EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes);
}

TEST_F(SnapshotStoreTest, AllLayersCanComeAtOnce) {
  const SnapshotOutcome outcome = world_.Store(1, 128);
  EXPECT_EQ(outcome.result, SnapshotResult::kStored);
  EXPECT_EQ(outcome.position, 128);
  const std::optional<SnapshotStore::Found> found = store_.Find(TestSpace(), Key(1));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->position, 128);
  EXPECT_EQ(found->bytes, kSnapshotBytes);
  EXPECT_TRUE(world_.Holds((*world_.Fetch(1))->parts(), 1));
}

TEST_F(SnapshotStoreTest, AKeyThatIsThereIsPresentAndNothingIsToBeWritten) {
  ASSERT_EQ(world_.Store(1, 128).result, SnapshotResult::kStored);
  absl::StatusOr<SnapshotDraft> part = store_.BeginPart(kSession, {TestSpace(), Key(1), 64}, 0);
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->outcome().result, SnapshotResult::kPresent);
  EXPECT_EQ(part->outcome().position, 128);
  EXPECT_THAT(part->parts(), IsEmpty());
  EXPECT_EQ(store_.Commit(*std::move(part)).result, SnapshotResult::kPresent);
  EXPECT_EQ(world_.Store(1).result, SnapshotResult::kPresent);
  EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes);
  EXPECT_EQ(store_.counters().stored, 1);
}

TEST_F(SnapshotStoreTest, LayersAtAnotherPositionAreRefused) {
  ASSERT_TRUE(world_.StorePart(kSession, 1, 64, 0).ok());
  const absl::Status status = world_.StorePart(kSession, 1, 128, 1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("other layers are at position 64; layer 1 is at 128"));
  EXPECT_EQ(world_.StorePart(kSession, 1, 64, 1)->result, SnapshotResult::kStored);
}

TEST_F(SnapshotStoreTest, BadLayersAndKeysAreRefused) {
  for (const std::int64_t layer : {-1, 2}) {
    EXPECT_TRUE(absl::IsInvalidArgument(store_.BeginPart(kSession, {TestSpace(), Key(1), 64}, layer).status()));
  }
  for (const std::size_t size : {0, 15, 65}) {
    const absl::Status status = store_.BeginPart(kSession, {TestSpace(), std::string(size, 'k'), 64}, 0).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("a key has 16 to 64"));
  }
  EXPECT_EQ(world_.used(TierKind::kDevice), 0);
}

TEST_F(SnapshotStoreTest, SessionsDoNotMixTheirParts) {
  ASSERT_EQ(world_.StorePart(kSession, 1, 64, 0)->result, SnapshotResult::kPending);
  ASSERT_EQ(world_.StorePart(kOther, 1, 128, 1)->result, SnapshotResult::kPending);
  EXPECT_FALSE(world_.Has(1));
  EXPECT_EQ(world_.StorePart(kOther, 1, 128, 0)->result, SnapshotResult::kStored);
  // The first session learns of it with its next part, and what it had is given back.
  const absl::StatusOr<SnapshotOutcome> late = world_.StorePart(kSession, 1, 64, 1);
  ASSERT_TRUE(late.ok());
  EXPECT_EQ(late->result, SnapshotResult::kPresent);
  EXPECT_EQ(late->position, 128);
  EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes);
}

TEST_F(SnapshotStoreTest, ASnapshotPublishedWhileAnotherDraftIsWrittenStays) {
  absl::StatusOr<SnapshotDraft> draft = store_.BeginPart(kSession, {TestSpace(), Key(1), 64}, 0);
  ASSERT_TRUE(draft.ok());
  ASSERT_EQ(world_.Store(1, 128).result, SnapshotResult::kStored);
  world_.Fill(draft->parts(), 2);
  const SnapshotOutcome outcome = store_.Commit(*std::move(draft));
  EXPECT_EQ(outcome.result, SnapshotResult::kPresent);
  EXPECT_EQ(outcome.position, 128);
  EXPECT_TRUE(world_.Holds((*world_.Fetch(1))->parts(), 1));
  EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes);
}

TEST_F(SnapshotStoreTest, OfTwoDraftsOfOneLayerTheFirstCommittedCounts) {
  absl::StatusOr<SnapshotDraft> first = store_.BeginPart(kSession, {TestSpace(), Key(1), 64}, 0);
  absl::StatusOr<SnapshotDraft> second = store_.BeginPart(kSession, {TestSpace(), Key(1), 64}, 0);
  ASSERT_TRUE(first.ok() && second.ok());
  world_.Fill(first->parts(), 9);
  world_.Fill(second->parts(), 1);
  EXPECT_EQ(store_.Commit(*std::move(second)).result, SnapshotResult::kPending);
  EXPECT_EQ(store_.Commit(*std::move(first)).result, SnapshotResult::kPending);
  EXPECT_EQ(world_.StorePart(kSession, 1, 64, 1)->result, SnapshotResult::kStored);
  EXPECT_TRUE(world_.Holds((*world_.Fetch(1))->parts(), 1));
  EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes);
}

TEST_F(SnapshotStoreTest, ADraftThatIsNotCommittedLeavesNothing) {
  {
    const absl::StatusOr<SnapshotDraft> draft = store_.BeginPart(kSession, {TestSpace(), Key(1), 64}, 0);
    ASSERT_TRUE(draft.ok());
    const SnapshotDraft whole = store_.BeginWhole({TestSpace(), Key(2), 64}, TierKind::kDevice);
    EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes + kSnapshotBytes / 2);
  }
  EXPECT_EQ(world_.used(TierKind::kDevice), 0);
  // Not even its position.
  EXPECT_EQ(world_.StoreParts(kSession, 1, 128).result, SnapshotResult::kStored);
}

TEST_F(SnapshotStoreTest, ACancelledLayerCanBeDoneAgain) {
  ASSERT_EQ(world_.StorePart(kSession, 1, 64, 0)->result, SnapshotResult::kPending);
  ASSERT_TRUE(store_.BeginPart(kSession, {TestSpace(), Key(1), 64}, 1).ok());  // dropped
  EXPECT_EQ(world_.StorePart(kSession, 1, 64, 1)->result, SnapshotResult::kStored);
}

TEST_F(SnapshotStoreTest, WhatASessionHasNotFinishedGoesWithIt) {
  ASSERT_TRUE(world_.StorePart(kSession, 1, 64, 0).ok());
  ASSERT_TRUE(world_.StorePart(kSession, 2, 128, 0).ok());
  ASSERT_TRUE(world_.StorePart(kOther, 1, 64, 0).ok());
  store_.EndSession(kSession);
  EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes / 2);
  EXPECT_EQ(store_.counters().abandoned, 2);
  EXPECT_EQ(world_.StorePart(kOther, 1, 64, 1)->result, SnapshotResult::kStored);
  store_.EndSession(kSession);
  store_.EndSession(kOther);
  EXPECT_TRUE(world_.Has(1));
}

TEST_F(SnapshotStoreTest, ADraftWhoseSessionHasEndedComesToNothing) {
  absl::StatusOr<SnapshotDraft> draft = store_.BeginPart(kSession, {TestSpace(), Key(1), 64}, 0);
  ASSERT_TRUE(draft.ok());
  store_.EndSession(kSession);
  world_.Fill(draft->parts(), 1);  // its memory is still its own
  const SnapshotOutcome outcome = store_.Commit(*std::move(draft));
  EXPECT_EQ(outcome.result, SnapshotResult::kNoSpace);
  EXPECT_THAT(outcome.message, HasSubstr("the session has ended"));
  EXPECT_EQ(world_.used(TierKind::kDevice), 0);
}

TEST_F(SnapshotStoreTest, UnfinishedSnapshotsGoWhenNoPartHasComeForTheTimeout) {
  ASSERT_TRUE(world_.StorePart(kSession, 1, 64, 0).ok());
  world_.clock.Advance(absl::Seconds(40));
  ASSERT_TRUE(world_.StorePart(kSession, 2, 64, 0).ok());
  ASSERT_TRUE(world_.StorePart(kSession, 1, 64, 0).ok());  // a layer again is no new part
  world_.clock.Advance(absl::Seconds(20));
  store_.Expire();
  EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes / 2);
  EXPECT_EQ(store_.counters().abandoned, 1);
  EXPECT_EQ(world_.StorePart(kSession, 2, 64, 1)->result, SnapshotResult::kStored);
  EXPECT_EQ(world_.StoreParts(kSession, 1, 128).result, SnapshotResult::kStored);
}

/// What the process has allocated; sanitizers' allocators tell nothing.
std::int64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

TEST(SnapshotStoreLimitsTest, UnfinishedSnapshotsTakeMemoryForThePartsThatCameOnly) {
  SnapshotSpace space = TestSpace();
  space.layers = 65'536;
  SnapshotWorld world({.device = 2 * space.layers});
  ASSERT_EQ(world.StorePart(kSession, 0, 64, 0, space)->result, SnapshotResult::kPending);
  const std::int64_t before = HeapBytes();
  constexpr std::int64_t kCount = 100;
  for (std::int64_t number = 1; number <= kCount; ++number) {
    ASSERT_EQ(world.StorePart(kSession, number, 64, number, space)->result, SnapshotResult::kPending);
  }
  EXPECT_LT(HeapBytes() - before, kCount * 4'096);
}

TEST_F(SnapshotStoreTest, TheNumberOfUnfinishedSnapshotsIsBounded) {
  SnapshotWorld::Setup setup{.device = 100};
  setup.options.limits.max_pending = 2;
  SnapshotWorld world(std::move(setup));
  ASSERT_EQ(world.StorePart(kSession, 1, 64, 0)->result, SnapshotResult::kPending);
  ASSERT_EQ(world.StorePart(kSession, 2, 64, 0)->result, SnapshotResult::kPending);
  const absl::StatusOr<SnapshotOutcome> third = world.StorePart(kSession, 3, 64, 0);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->result, SnapshotResult::kNoSpace);
  EXPECT_THAT(third->message, HasSubstr("2 unfinished snapshots; it may have at most 2"));
  EXPECT_EQ(world.StorePart(kSession, 1, 64, 1)->result, SnapshotResult::kStored);
  EXPECT_EQ(world.StorePart(kSession, 3, 64, 0)->result, SnapshotResult::kPending);
}

TEST_F(SnapshotStoreTest, AnyNumberOfUnfinishedSnapshotsEndsWithTheirSessionOrTime) {
  constexpr std::int64_t kMany = 1'000;
  SnapshotWorld world({.device = kMany});
  const auto begin = [&world] {
    for (std::int64_t number = 0; number < kMany; ++number) {
      ASSERT_EQ(world.StorePart(kSession, number, 64, 0)->result, SnapshotResult::kPending);
    }
  };
  begin();
  world.store->EndSession(kSession);
  EXPECT_EQ(world.used(TierKind::kDevice), 0);
  begin();
  world.clock.Advance(absl::Hours(1));
  world.store->Expire();
  EXPECT_EQ(world.used(TierKind::kDevice), 0);
  EXPECT_EQ(world.store->counters().abandoned, 2 * kMany);
}

TEST_F(SnapshotStoreTest, UnfinishedSnapshotsOfOneTenantLeaveRoomForOthers) {
  SnapshotWorld::Setup setup{.device = 4};
  setup.options.limits.tenant_share.percent = 50;
  SnapshotWorld world(std::move(setup));
  const SnapshotSpace others = TestSpace("another");
  for (const std::int64_t number : {1, 2}) {
    ASSERT_EQ(world.StorePart(kSession, number, 64, 0)->result, SnapshotResult::kPending);
  }
  for (const std::int64_t layer : {0, 1}) {
    const absl::StatusOr<SnapshotOutcome> third = world.StorePart(kOther, 3, 64, layer);
    ASSERT_TRUE(third.ok());
    EXPECT_EQ(third->result, SnapshotResult::kNoSpace);
    EXPECT_EQ(third->message,
              "the device tier: a snapshot takes 1024 bytes; unfinished ones of the tenant take 2048 of the 2048 bytes "
              "that they may");
  }
  for (const std::int64_t number : {1, 2}) {
    EXPECT_EQ(world.StoreParts(kOther, number, 64, others).result, SnapshotResult::kStored);
  }
  EXPECT_EQ(world.StorePart(kSession, 1, 64, 1)->result, SnapshotResult::kStored);
  EXPECT_EQ(world.StorePart(kOther, 4, 64, 0)->result, SnapshotResult::kPending) << "a finished one is not counted";
  world.store->EndSession(kOther);
  EXPECT_EQ(world.StorePart(kSession, 5, 64, 0)->result, SnapshotResult::kPending);
  world.store->EndSession(kSession);
  for (const std::int64_t number : {6, 7}) {
    EXPECT_EQ(world.StorePart(kSession, number, 64, 0)->result, SnapshotResult::kPending) << "all of it is free again";
  }
}

TEST_F(SnapshotStoreTest, AnUnfinishedSnapshotOfAnySizeMayBeTheOnlyOneOfItsTenant) {
  SnapshotWorld::Setup setup{.device = 3};
  setup.options.limits.tenant_share.percent = 10;
  SnapshotWorld world(std::move(setup));
  EXPECT_EQ(world.StorePart(kSession, 1, 64, 0)->result, SnapshotResult::kPending);
  EXPECT_EQ(world.StorePart(kSession, 2, 64, 0)->result, SnapshotResult::kNoSpace);
  EXPECT_EQ(world.StorePart(kSession, 1, 64, 1)->result, SnapshotResult::kStored);
  EXPECT_EQ(world.StorePart(kSession, 3, 64, 0)->result, SnapshotResult::kPending);
}

TEST_F(SnapshotStoreTest, TheNumberOfUnfinishedSnapshotsOfOneTenantIsBounded) {
  SnapshotWorld::Setup setup{.device = 100};
  setup.options.limits.max_pending = 4;
  setup.options.limits.tenant_share.percent = 50;
  SnapshotWorld world(std::move(setup));
  for (const std::int64_t number : {1, 2}) {
    ASSERT_EQ(world.StorePart(kSession, number, 64, 0)->result, SnapshotResult::kPending);
  }
  const absl::StatusOr<SnapshotOutcome> third = world.StorePart(kSession, 3, 64, 0);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->result, SnapshotResult::kNoSpace);
  EXPECT_EQ(third->message, "the tenant has 2 unfinished snapshots; it may have at most 2");
  EXPECT_EQ(world.StorePart(kOther, 1, 64, 0, TestSpace("another"))->result, SnapshotResult::kPending);
  EXPECT_EQ(world.StorePart(kSession, 1, 64, 1)->result, SnapshotResult::kStored);
  EXPECT_EQ(world.StorePart(kSession, 3, 64, 0)->result, SnapshotResult::kPending);
}

TEST_F(SnapshotStoreTest, WhenALayerFindsNoRoomTheOthersDoNotTryAgain) {
  SnapshotWorld world({.device = 2});
  // One and a half snapshots of what cannot go.
  ASSERT_EQ(world.Store(1).result, SnapshotResult::kStored);
  const absl::StatusOr<std::shared_ptr<const TierCopy>> reader = world.Fetch(1);
  ASSERT_EQ(world.StorePart(kOther, 2, 64, 0)->result, SnapshotResult::kPending);

  ASSERT_EQ(world.StorePart(kSession, 3, 64, 0)->result, SnapshotResult::kPending);
  absl::StatusOr<SnapshotOutcome> outcome = world.StorePart(kSession, 3, 64, 1);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->result, SnapshotResult::kNoSpace);
  EXPECT_THAT(outcome->message, HasSubstr("the device tier: 1 x 512 bytes are needed; 2048 of 2048 are in use"));
  EXPECT_EQ(world.used(TierKind::kDevice), kSnapshotBytes + kSnapshotBytes / 2);  // its first part is given back
  // The same layers again are a new attempt.
  EXPECT_EQ(world.StorePart(kSession, 3, 64, 0)->result, SnapshotResult::kPending);
  world.store->EndSession(kOther);
  EXPECT_EQ(world.StorePart(kSession, 3, 64, 1)->result, SnapshotResult::kStored);
}

// Finding.

TEST_F(SnapshotStoreTest, TheLongestKeyThatIsThereIsFound) {
  for (const std::int64_t number : {1, 3, 5})
    ASSERT_EQ(world_.Store(number, 64 * number).result, SnapshotResult::kStored);
  const std::optional<SnapshotStore::Lookup> lookup = world_.Lookup({1, 2, 3, 4});
  ASSERT_TRUE(lookup.has_value());
  EXPECT_EQ(lookup->index, 2);
  EXPECT_EQ(lookup->snapshot.key, Key(3));
  EXPECT_EQ(lookup->snapshot.position, 192);
  EXPECT_EQ(lookup->snapshot.bytes, kSnapshotBytes);
  EXPECT_THAT(lookup->snapshot.tiers, ElementsAre(TierKind::kDevice));
  EXPECT_EQ(lookup->pin, "");
  EXPECT_EQ(world_.Lookup({0, 2, 4}), std::nullopt);
  EXPECT_EQ(world_.Lookup({}), std::nullopt);
  EXPECT_EQ(store_.counters().hits, 1);
  EXPECT_EQ(store_.counters().misses, 2);
  EXPECT_EQ(store_.counters().hit_tokens, 192);
}

TEST_F(SnapshotStoreTest, TokensFoundAreCountedUpToTheMostThatThereCanBe) {
  constexpr std::int64_t kFarthest = std::int64_t{1} << 62;  // what a client may say of a slot
  ASSERT_EQ(world_.Store(1, kFarthest).result, SnapshotResult::kStored);
  for (int n = 0; n < 3; ++n) ASSERT_NE(world_.Lookup({1}), std::nullopt);
  EXPECT_EQ(store_.counters().hit_tokens, std::numeric_limits<std::int64_t>::max());
}

TEST_F(SnapshotStoreTest, AnyOfManyKeysIsFound) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t number = 0; number < 300; ++number) numbers.push_back(number);
  for (std::int64_t number = 299; number >= 0; number -= 13) {
    ASSERT_EQ(world_.Store(number).result, SnapshotResult::kStored);
    const std::optional<SnapshotStore::Lookup> lookup = world_.Lookup(numbers);
    ASSERT_TRUE(lookup.has_value());
    EXPECT_EQ(lookup->index, number);
    const std::string key = Key(number);
    EXPECT_EQ(*store_.Delete(TestSpace(), {key}, false), 1);
  }
}

TEST_F(SnapshotStoreTest, KeysAreComparedWhole) {
  const std::string first = Key(1) + std::string(48, 'a');
  const std::string second = Key(1) + std::string(47, 'a') + "b";
  SnapshotDraft draft = store_.BeginWhole({TestSpace(), first, 64}, TierKind::kDevice);
  world_.Fill(draft.parts(), 1);
  ASSERT_EQ(store_.Commit(std::move(draft)).result, SnapshotResult::kStored);
  EXPECT_TRUE(store_.Find(TestSpace(), first).has_value());
  EXPECT_FALSE(store_.Find(TestSpace(), second).has_value());
  EXPECT_FALSE(store_.Find(TestSpace(), Key(1)).has_value());
  EXPECT_FALSE(store_.Find(TestSpace(), first + std::string(1, '\0')).has_value());
}

TEST_F(SnapshotStoreTest, EveryDifferenceOfSpaceKeepsSnapshotsApart) {
  ASSERT_EQ(world_.Store(1).result, SnapshotResult::kStored);
  const auto differs = [&](auto change) {
    SnapshotSpace space = TestSpace();
    change(space);
    return !world_.Has(1, space) && !world_.Lookup({1}, absl::ZeroDuration(), space).has_value() &&
           absl::IsNotFound(world_.Fetch(1, space).status()) && store_.List(space, "", 10).empty();
  };
  EXPECT_TRUE(differs([](SnapshotSpace& s) { s.tenant = "other"; }));
  EXPECT_TRUE(differs([](SnapshotSpace& s) { s.fingerprint = "model@2"; }));
  EXPECT_TRUE(differs([](SnapshotSpace& s) { s.tenant = "tenantm", s.fingerprint = "odel@1"; }));
  EXPECT_TRUE(differs([](SnapshotSpace& s) { s.layers = 3; }));
  EXPECT_TRUE(differs([](SnapshotSpace& s) { s.heads = 3; }));
  EXPECT_TRUE(differs([](SnapshotSpace& s) { std::swap(s.key_dim, s.value_dim); }));
  EXPECT_TRUE(differs([](SnapshotSpace& s) { s.num_householder = 2; }));
  EXPECT_TRUE(differs([](SnapshotSpace& s) { s.state_dtype = kernels::DataType::kBFloat16; }));
  EXPECT_TRUE(differs([](SnapshotSpace& s) { s.auxiliary_bytes = 0; }));
  EXPECT_TRUE(world_.Has(1));
}

TEST_F(SnapshotStoreTest, OneKeyInTwoSpacesIsTwoSnapshots) {
  ASSERT_EQ(world_.Store(1, 64).result, SnapshotResult::kStored);
  ASSERT_EQ(world_.Store(1, 128, TestSpace("other")).result, SnapshotResult::kStored);
  const std::string key = Key(1);
  EXPECT_EQ(*store_.Delete(TestSpace("other"), {key}, false), 1);
  EXPECT_TRUE(world_.Has(1));
  EXPECT_FALSE(world_.Has(1, TestSpace("other")));
}

// Reading, deleting and listing.

TEST_F(SnapshotStoreTest, AReaderKeepsWhatHasBeenDeleted) {
  ASSERT_EQ(world_.Store(1).result, SnapshotResult::kStored);
  absl::StatusOr<std::shared_ptr<const TierCopy>> copy = world_.Fetch(1);
  ASSERT_TRUE(copy.ok());
  const std::string key = Key(1);
  EXPECT_EQ(*store_.Delete(TestSpace(), {key}, false), 1);
  EXPECT_FALSE(world_.Has(1));
  EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes);
  ASSERT_EQ(world_.Store(1).result, SnapshotResult::kStored);  // another one
  EXPECT_EQ(world_.used(TierKind::kDevice), 2 * kSnapshotBytes);
  EXPECT_TRUE(world_.Holds((*copy)->parts(), 1));
  copy = absl::UnknownError("");
  EXPECT_EQ(world_.used(TierKind::kDevice), kSnapshotBytes);
}

TEST_F(SnapshotStoreTest, DeletingPassesOverWhatIsNotThere) {
  ASSERT_EQ(world_.Store(1).result, SnapshotResult::kStored);
  ASSERT_EQ(world_.Store(2).result, SnapshotResult::kStored);
  const std::vector<std::string> keys = {Key(2), Key(3), Key(2)};
  EXPECT_EQ(*store_.Delete(TestSpace(), {keys[0], keys[1], keys[2]}, false), 1);
  EXPECT_THAT(world_.Numbers(5), ElementsAre(1));
  EXPECT_EQ(*store_.Delete(TestSpace("other"), {keys[0]}, false), 0);
  EXPECT_EQ(store_.counters().deleted, 1);
}

TEST_F(SnapshotStoreTest, ListsInTheKeysOrderPageByPage) {
  for (const std::int64_t number : {5, 1, 4, 2, 3}) {
    ASSERT_EQ(world_.Store(number, 64 * number).result, SnapshotResult::kStored);
  }
  const auto keys = [&](absl::string_view after, std::int64_t limit) {
    std::vector<std::string> listed;
    for (const SnapshotSummary& summary : store_.List(TestSpace(), after, limit)) listed.push_back(summary.key);
    return listed;
  };
  EXPECT_THAT(keys("", 2), ElementsAre(Key(1), Key(2)));
  EXPECT_THAT(keys(Key(2), 2), ElementsAre(Key(3), Key(4)));
  EXPECT_THAT(keys(Key(4), 2), ElementsAre(Key(5)));
  EXPECT_THAT(keys(Key(5), 2), IsEmpty());
  EXPECT_THAT(keys("", 0), IsEmpty());
}

TEST_F(SnapshotStoreTest, LongListsAreWhole) {
  SnapshotWorld world({.device = 1'000});
  for (std::int64_t number = 999; number >= 0; --number) {
    ASSERT_EQ(world.Store(number).result, SnapshotResult::kStored);
  }
  const std::vector<SnapshotSummary> all = world.store->List(TestSpace(), "", 10'000);
  ASSERT_EQ(all.size(), 1'000);
  for (std::int64_t number = 0; number < 1'000; ++number) EXPECT_EQ(all[number].key, Key(number));
}

TEST_F(SnapshotStoreTest, ASummaryTellsWhenItWasStoredAndUsed) {
  const absl::Time stored = world_.clock.Now();
  ASSERT_EQ(world_.Store(1).result, SnapshotResult::kStored);
  world_.clock.Advance(absl::Seconds(5));
  ASSERT_TRUE(world_.Fetch(1).ok());
  world_.clock.Advance(absl::Seconds(5));
  const std::vector<SnapshotSummary> all = store_.List(TestSpace(), "", 10);
  ASSERT_EQ(all.size(), 1);
  EXPECT_EQ(all[0].stored, stored);
  EXPECT_EQ(all[0].used, stored + absl::Seconds(5));
  EXPECT_FALSE(all[0].pinned);
}

// Eviction from the only tier.

TEST_F(SnapshotStoreTest, TheLeastRecentlyUsedGivesWay) {
  SnapshotWorld world({.device = 3});
  for (const std::int64_t number : {1, 2, 3}) {
    ASSERT_EQ(world.Store(number).result, SnapshotResult::kStored);
    world.clock.Advance(absl::Seconds(1));
  }
  ASSERT_TRUE(world.Fetch(1).ok());
  world.clock.Advance(absl::Seconds(1));
  ASSERT_EQ(world.Store(4).result, SnapshotResult::kStored);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 3, 4));
  world.clock.Advance(absl::Seconds(1));
  ASSERT_TRUE(world.Lookup({3}).has_value());  // a use
  ASSERT_TRUE(world.Has(1));                   // none
  world.clock.Advance(absl::Seconds(1));
  ASSERT_EQ(world.Store(5).result, SnapshotResult::kStored);
  EXPECT_THAT(world.Numbers(9), ElementsAre(3, 4, 5));
  ASSERT_EQ(world.Store(3).result, SnapshotResult::kPresent);  // storing it again is a use
  world.clock.Advance(absl::Seconds(1));
  ASSERT_EQ(world.StoreParts(kSession, 6).result, SnapshotResult::kStored);
  EXPECT_THAT(world.Numbers(9), ElementsAre(3, 5, 6));
  EXPECT_EQ(world.store->counters().evicted, 3);
}

TEST_F(SnapshotStoreTest, OfThoseUsedAtOneMomentTheLongerGivesWay) {
  SnapshotWorld world({.device = 3});
  ASSERT_EQ(world.Store(1, 64).result, SnapshotResult::kStored);
  ASSERT_EQ(world.Store(2, 192).result, SnapshotResult::kStored);
  ASSERT_EQ(world.Store(3, 128).result, SnapshotResult::kStored);
  world.clock.Advance(absl::Seconds(1));
  ASSERT_EQ(world.Store(4, 1'000).result, SnapshotResult::kStored);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 3, 4));
  ASSERT_EQ(world.Store(5, 1'000).result, SnapshotResult::kStored);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 4, 5));
}

TEST_F(SnapshotStoreTest, WhatIsBeingReadStays) {
  SnapshotWorld world({.device = 2});
  ASSERT_EQ(world.Store(1).result, SnapshotResult::kStored);
  absl::StatusOr<std::shared_ptr<const TierCopy>> first = world.Fetch(1);
  world.clock.Advance(absl::Seconds(1));
  ASSERT_EQ(world.Store(2).result, SnapshotResult::kStored);
  world.clock.Advance(absl::Seconds(1));
  ASSERT_EQ(world.Store(3).result, SnapshotResult::kStored);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 3));
  const absl::StatusOr<std::shared_ptr<const TierCopy>> third = world.Fetch(3);
  const SnapshotOutcome outcome = world.Store(4);
  EXPECT_EQ(outcome.result, SnapshotResult::kNoSpace);
  EXPECT_THAT(outcome.message, HasSubstr("the device tier: 2 x 512 bytes are needed; 2048 of 2048 are in use"));
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 3));
  first = absl::UnknownError("");
  EXPECT_EQ(world.Store(4).result, SnapshotResult::kStored);
  EXPECT_THAT(world.Numbers(9), ElementsAre(3, 4));
}

TEST_F(SnapshotStoreTest, WhatCanNeverFitEvictsNobody) {
  SnapshotWorld world({.device = 2});
  ASSERT_EQ(world.Store(1).result, SnapshotResult::kStored);
  ASSERT_EQ(world.Store(2).result, SnapshotResult::kStored);
  SnapshotSpace large = TestSpace();
  large.layers = 5;
  EXPECT_EQ(world.Store(3, 64, large).result, SnapshotResult::kNoSpace);
  EXPECT_THAT(world.Numbers(9), ElementsAre(1, 2));
}

TEST_F(SnapshotStoreTest, TheNumberOfSnapshotsIsBounded) {
  SnapshotWorld::Setup setup{.device = 100};
  setup.options.limits.max_snapshots = 2;
  SnapshotWorld world(std::move(setup));
  for (const std::int64_t number : {1, 2, 3}) {
    ASSERT_EQ(world.Store(number, 64, TestSpace(number == 1 ? "a" : "b")).result, SnapshotResult::kStored);
    world.clock.Advance(absl::Seconds(1));
  }
  EXPECT_FALSE(world.Has(1, TestSpace("a")));
  EXPECT_THAT(world.Numbers(9, TestSpace("b")), ElementsAre(2, 3));
  const auto first = world.Fetch(2, TestSpace("b"));
  const auto second = world.Fetch(3, TestSpace("b"));
  const SnapshotOutcome outcome = world.Store(4);
  EXPECT_EQ(outcome.result, SnapshotResult::kNoSpace);
  EXPECT_THAT(outcome.message, HasSubstr("2 snapshots, all in use or pinned; it may have at most 2"));
  EXPECT_EQ(world.used(TierKind::kDevice), 2 * kSnapshotBytes);
}

// What the device loses is not kept.

TEST_F(SnapshotStoreTest, NothingRemainsWhenTheBackendHasNoMemory) {
  world_.backend.FailAfter(test::FaultInjectingBackend::Operation::kAllocate, 0,
                           absl::ResourceExhaustedError("the device is full"));
  const SnapshotOutcome outcome = world_.Store(1);
  EXPECT_EQ(outcome.result, SnapshotResult::kNoSpace);
  EXPECT_THAT(outcome.message, HasSubstr("the device is full"));
  EXPECT_EQ(world_.used(TierKind::kDevice), 0);
  for (int n = 0; n < Arena::kPatience; ++n) EXPECT_EQ(world_.Store(1).result, SnapshotResult::kNoSpace);
  EXPECT_EQ(world_.Store(1).result, SnapshotResult::kStored);
}

}  // namespace
}  // namespace gdpcache::cache
