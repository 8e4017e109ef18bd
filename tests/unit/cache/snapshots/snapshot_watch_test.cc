#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/snapshots/snapshot_world.h"

namespace gdpcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// "stored 1", in the order told.
std::vector<std::string> Take(SnapshotWatch& watch) {
  absl::StatusOr<std::vector<SnapshotEvent>> events = watch.Take();
  EXPECT_TRUE(events.ok()) << events.status();
  std::vector<std::string> told;
  if (!events.ok()) return told;
  for (const SnapshotEvent& event : *events) {
    const std::string number = event.key.empty() ? "" : absl::StrCat(" ", std::stoll(event.key.substr(4)));
    switch (event.type) {
      case SnapshotEvent::Type::kStored:
        told.push_back("stored" + number);
        break;
      case SnapshotEvent::Type::kEvicted:
        told.push_back("evicted" + number);
        break;
      case SnapshotEvent::Type::kDeleted:
        told.push_back("deleted" + number);
        break;
      case SnapshotEvent::Type::kSynced:
        told.push_back("synced");
        break;
    }
  }
  return told;
}

class SnapshotWatchTest : public ::testing::Test {
 protected:
  std::unique_ptr<SnapshotWatch> Watch(bool existing = false) {
    absl::StatusOr<std::unique_ptr<SnapshotWatch>> watch =
        world_.store->Watch(TestSpace(), existing, [this] { ++wakes_; });
    EXPECT_TRUE(watch.ok()) << watch.status();
    return *std::move(watch);
  }

  SnapshotWorld world_{[] {
    SnapshotWorld::Setup setup{.device = 3'000};
    setup.options.limits.max_watch_events = 5;
    return setup;
  }()};
  std::atomic<int> wakes_ = 0;
};

TEST_F(SnapshotWatchTest, TellsWhatHappensInOrder) {
  SnapshotWorld world({.device = 2});
  const std::unique_ptr<SnapshotWatch> watch = *world.store->Watch(TestSpace(), false, [] {});
  EXPECT_THAT(Take(*watch), IsEmpty());
  world.Store(1);
  world.clock.Advance(absl::Seconds(1));
  world.Store(2);
  world.Store(2);  // is there
  ASSERT_TRUE(world.Delete({2}).ok());
  world.Store(3);
  world.Store(4);
  EXPECT_THAT(Take(*watch), ElementsAre("stored 1", "stored 2", "deleted 2", "stored 3", "evicted 1", "stored 4"));
  EXPECT_THAT(Take(*watch), IsEmpty());
}

TEST_F(SnapshotWatchTest, WakesOnceUntilEverythingHasBeenTaken) {
  const std::unique_ptr<SnapshotWatch> watch = Watch();
  world_.Store(1);
  world_.Store(2);
  EXPECT_EQ(wakes_, 1);
  Take(*watch);
  EXPECT_EQ(wakes_, 1);
  world_.Store(3);
  EXPECT_EQ(wakes_, 2);
}

TEST_F(SnapshotWatchTest, TellsOnlyOfItsSpace) {
  const std::unique_ptr<SnapshotWatch> watch = Watch(/*existing=*/true);
  EXPECT_THAT(Take(*watch), ElementsAre("synced"));
  world_.Store(1, 64, TestSpace("other"));
  EXPECT_EQ(wakes_, 0);
  EXPECT_THAT(Take(*watch), IsEmpty());
}

TEST_F(SnapshotWatchTest, TellsWhatThereIsBeforeWhatHappens) {
  world_.Store(2);
  world_.Store(1);
  const std::unique_ptr<SnapshotWatch> watch = Watch(/*existing=*/true);
  EXPECT_EQ(wakes_, 0);
  world_.Store(3);
  ASSERT_EQ(*world_.Delete({1}), 1);
  // 1 has been stored and deleted before anybody asked.
  EXPECT_THAT(Take(*watch), ElementsAre("stored 2", "stored 3", "synced", "stored 3", "deleted 1"));
}

TEST_F(SnapshotWatchTest, WhatThereIsComesInPiecesHoweverMuchItIs) {
  for (std::int64_t number = 0; number < 2'500; ++number) world_.Store(number);
  const std::unique_ptr<SnapshotWatch> watch = Watch(/*existing=*/true);
  std::vector<std::string> told = Take(*watch);
  EXPECT_EQ(told.size(), 1'024);
  ASSERT_EQ(*world_.Delete({0}), 1);      // told already
  ASSERT_EQ(*world_.Delete({2'000}), 1);  // not yet
  while (told.back() != "synced" && told.size() < 10'000) {
    for (std::string& event : Take(*watch)) told.push_back(std::move(event));
  }
  EXPECT_EQ(told.size(), 2'499 + 2 + 1);
  EXPECT_THAT(Take(*watch), IsEmpty());
}

TEST_F(SnapshotWatchTest, ASlowWatcherHasToStartAnew) {
  std::unique_ptr<SnapshotWatch> watch = Watch();
  for (std::int64_t number = 1; number <= 6; ++number) world_.Store(number);
  const absl::Status status = watch->Take().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 5 events"));
  EXPECT_TRUE(absl::IsResourceExhausted(watch->Take().status()));
  watch = Watch(/*existing=*/true);
  EXPECT_EQ(Take(*watch).size(), 7);
}

TEST_F(SnapshotWatchTest, TheNumberOfWatchersIsBounded) {
  std::vector<std::unique_ptr<SnapshotWatch>> watches;
  for (int n = 0; n < 4; ++n) watches.push_back(Watch());
  const absl::Status status = world_.store->Watch(TestSpace(), false, [] {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("4 watchers of snapshots; it may have at most 4"));
  watches.pop_back();
  Watch();
}

TEST(SnapshotWatchShareTest, OneTenantTakesNoMoreThanItsShare) {
  SnapshotOptions options = SnapshotWorld::DefaultOptions();
  options.limits.max_tenant_watches = 2;
  SnapshotWorld world({.device = 4, .options = options});
  SnapshotSpace other = TestSpace();
  other.tenant = "other";
  std::vector<std::unique_ptr<SnapshotWatch>> watches;
  for (const SnapshotSpace& space : {TestSpace(), TestSpace(), other, other}) {
    if (watches.size() == 2) {
      const absl::Status status = world.store->Watch(TestSpace(), false, [] {}).status();
      EXPECT_TRUE(absl::IsResourceExhausted(status));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("the tenant has 2 watchers of snapshots; it may have at most 2"));
    }
    auto watch = world.store->Watch(space, false, [] {});
    ASSERT_TRUE(watch.ok()) << watch.status();
    watches.push_back(*std::move(watch));
  }
  watches.erase(watches.begin());
  EXPECT_TRUE(world.store->Watch(TestSpace(), false, [] {}).ok());
}

TEST_F(SnapshotWatchTest, AWatchThatHasEndedIsNotWoken) {
  Watch().reset();
  world_.Store(1);
  EXPECT_EQ(wakes_, 0);
}

}  // namespace
}  // namespace gdpcache::cache
