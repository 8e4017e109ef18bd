#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/cache/snapshots/snapshot_world.h"

/// Everything at once, from many threads. What a key holds follows from it and from its position, so whatever a reader
/// sees is checked to be one state that somebody stored.
namespace gdpcache::cache {
namespace {

constexpr int kThreads = 16;
constexpr int kSteps = 500;
constexpr std::int64_t kNumbers = 40;

/// Counts fetches that have not been answered.
class Outstanding {
 public:
  void Begin() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void End() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [&] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::int64_t count_ = 0;
};

class Racer {
 public:
  Racer(SnapshotWorld& world, int number) : world_(world), session_(number + 1), random_(number) {}

  void Run() {
    for (int step = 0; step < kSteps; ++step) {
      Step();
      world_.clock.Advance(absl::Milliseconds(1));
    }
    for (const std::string& pin : pins_) static_cast<void>(world_.store->Unpin(space_, pin));
    world_.store->EndSession(session_);
    outstanding_.Wait();
  }

 private:
  std::int64_t Seed(std::int64_t number, std::int64_t position) const { return number * 1'000 + position; }
  std::int64_t Number() { return static_cast<std::int64_t>(random_() % kNumbers); }
  std::int64_t Position() { return static_cast<std::int64_t>(64 * (1 + random_() % 2)); }

  void Step() {
    const std::int64_t number = Number();
    const std::string key = Key(number);
    switch (random_() % 10) {
      case 0:
      case 1: {
        const std::int64_t position = Position();
        SnapshotDraft draft = world_.store->BeginWhole({space_, key, position}, TierKind::kDevice);
        world_.Fill(draft.parts(), Seed(number, position));
        if (random_() % 8 != 0) world_.store->Commit(std::move(draft));
        break;
      }
      case 2:
      case 3: {
        const std::int64_t position = Position();
        for (std::int64_t layer = 0; layer < 2; ++layer) {
          absl::StatusOr<SnapshotDraft> draft = world_.store->BeginPart(session_, {space_, key, position}, layer);
          if (!draft.ok()) continue;  // this session's earlier, unfinished one is at the other position
          world_.Fill(draft->parts(), Seed(number, position), layer);
          if (random_() % 8 != 0) world_.store->Commit(*std::move(draft));
        }
        break;
      }
      case 4:
      case 5:
      case 6:
        outstanding_.Begin();
        world_.store->Fetch(space_, key, [this, number](absl::StatusOr<SnapshotStore::Fetched> fetched) {
          if (fetched.ok()) {
            EXPECT_TRUE(world_.Holds(fetched->copy->parts(), Seed(number, fetched->position)));
          } else {
            EXPECT_TRUE(absl::IsNotFound(fetched.status()) || absl::IsResourceExhausted(fetched.status()) ||
                        absl::IsDataLoss(fetched.status()))
                << fetched.status();
          }
          fetched = absl::UnknownError("");
          outstanding_.End();
        });
        break;
      case 7: {
        const std::string other = Key(Number());
        const std::optional<SnapshotStore::Lookup> lookup =
            world_.store->LookupPrefix(space_, {key, other}, absl::Milliseconds(random_() % 3 * 20));
        if (lookup.has_value() && !lookup->pin.empty()) pins_.push_back(lookup->pin);
        break;
      }
      case 8:
        if (random_() % 2 == 0) {
          const absl::StatusOr<SnapshotStore::Pinned> pinned = world_.store->Pin(space_, {key}, absl::Milliseconds(50));
          if (pinned.ok()) pins_.push_back(pinned->pin);
        } else if (!pins_.empty()) {
          static_cast<void>(world_.store->Unpin(space_, pins_.back()));
          pins_.pop_back();
        }
        break;
      default:
        if (random_() % 4 == 0) {
          world_.store->EndSession(session_);
        } else {
          static_cast<void>(world_.store->Delete(space_, {key}, random_() % 2 == 0));
        }
        break;
    }
  }

  SnapshotWorld& world_;
  const SessionKey session_;
  const SnapshotSpace space_ = TestSpace();
  std::mt19937 random_;
  std::vector<std::string> pins_;
  Outstanding outstanding_;
};

void Race(SnapshotWorld::Setup setup) {
  setup.options.limits.pinned_bytes = 6 * kSnapshotBytes;
  setup.options.limits.tenant_bytes = 30 * kSnapshotBytes;
  SnapshotWorld world(std::move(setup));
  if (world.disk != nullptr) {
    world.disk->FailAfter(test::FaultInjectingTier::Operation::kLoad, 20, absl::DataLossError("damaged"));
    world.disk->FailAfter(test::FaultInjectingTier::Operation::kStore, 30, absl::UnavailableError("in trouble"));
  }
  std::atomic<bool> done = false;
  std::thread watcher([&] {
    while (!done) {
      const std::unique_ptr<SnapshotWatch> watch = *world.store->Watch(TestSpace(), true, [] {});
      for (int n = 0; n < 10; ++n) ASSERT_TRUE(watch->Take().ok());
      world.store->List(TestSpace(), "", 100);
      world.store->Expire();
    }
  });
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&world, number] { Racer(world, number).Run(); });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  watcher.join();
  world.store->WaitUntilIdle();

  // What is there is what is counted, and all of it can go.
  std::int64_t copies[3] = {};
  for (const SnapshotSummary& summary : world.store->List(TestSpace(), "", 1'000)) {
    for (const TierKind kind : summary.tiers) ++copies[static_cast<std::size_t>(kind)];
  }
  std::int64_t snapshots = 0;
  for (const SnapshotStore::TierUsage& tier : world.store->tiers()) {
    EXPECT_EQ(tier.snapshots, copies[static_cast<std::size_t>(tier.kind)]) << Name(tier.kind);
    EXPECT_EQ(tier.used, tier.snapshots * kSnapshotBytes) << Name(tier.kind);
    snapshots += tier.snapshots;
  }
  EXPECT_GT(snapshots, 0);
  world.clock.Advance(absl::Hours(1));
  world.store->Expire();
  for (std::int64_t number = 0; number < kNumbers; ++number) {
    ASSERT_TRUE(world.Delete({number}).ok());
  }
  world.store->WaitUntilIdle();
  for (const SnapshotStore::TierUsage& tier : world.store->tiers()) {
    EXPECT_EQ(tier.used, 0) << Name(tier.kind);
    EXPECT_EQ(tier.snapshots, 0) << Name(tier.kind);
  }
  const SnapshotCounters counters = world.store->counters();
  EXPECT_EQ(counters.stored, counters.evicted + counters.deleted);
  // The tenant's quota is free again to the last byte.
  for (std::int64_t number = 0; number < 4; ++number) {
    EXPECT_EQ(world.Store(number).result, SnapshotResult::kStored);
    world.store->WaitUntilIdle();
  }
}

TEST(SnapshotRacesTest, InOneTier) { Race({.device = 12}); }

TEST(SnapshotRacesTest, AcrossAllTiersWritingBack) {
  Race({.device = 8, .host = 8, .disk = 20, .high = 0.75, .low = 0.5});
}

TEST(SnapshotRacesTest, AcrossAllTiersWritingThrough) {
  SnapshotWorld::Setup setup{.device = 8, .host = 8, .disk = 20, .high = 0.75, .low = 0.5};
  setup.options.write_policy = WritePolicy::kWriteThrough;
  Race(std::move(setup));
}

TEST(SnapshotRacesTest, BetweenDeviceAndDisk) {
  SnapshotWorld::Setup setup{.device = 6, .disk = 12, .high = 0.75, .low = 0.25};
  setup.options.write_policy = WritePolicy::kWriteThrough;
  Race(std::move(setup));
}

}  // namespace
}  // namespace gdpcache::cache
