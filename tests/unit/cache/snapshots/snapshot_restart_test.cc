#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/snapshots/disk_tier.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/cache/snapshots/snapshot_world.h"

/// A store on a real directory, ended and made again.
namespace gdpcache::cache {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

class SnapshotRestartTest : public ::testing::Test {
 protected:
  /// Ends the store there is and makes one that finds what the directory has.
  void Start(WritePolicy policy, std::int64_t disk_bytes = 64 * kMebibyte) {
    world_.store.reset();
    std::vector<std::pair<SnapshotRecord, std::shared_ptr<TierCopy>>> recovered;
    DiskTier::Options disk;
    disk.directory = directory_.path() + "/snapshots";
    disk.capacity = disk_bytes;
    absl::StatusOr<std::unique_ptr<DiskTier>> tier =
        DiskTier::Open(std::move(disk), world_.backend, [&](SnapshotRecord record, std::shared_ptr<TierCopy> copy) {
          recovered.emplace_back(std::move(record), std::move(copy));
        });
    ASSERT_TRUE(tier.ok()) << tier.status();
    std::vector<StoreTier> tiers;
    const std::int64_t device = 10 * kSnapshotBytes;
    tiers.push_back({std::make_unique<MemoryTier>(world_.backend, TierKind::kDevice, device), device, device / 2});
    tiers.push_back({*std::move(tier), disk_bytes, disk_bytes});
    SnapshotOptions options = SnapshotWorld::DefaultOptions();
    options.write_policy = policy;
    absl::StatusOr<std::unique_ptr<SnapshotStore>> store =
        SnapshotStore::Create(world_.backend, world_.clock, std::move(tiers), std::move(options));
    ASSERT_TRUE(store.ok()) << store.status();
    world_.store = *std::move(store);
    for (auto& [record, copy] : recovered) world_.store->Recover(record, std::move(copy));
  }

  std::vector<std::filesystem::path> Files() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path() + "/snapshots")) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
    return files;
  }

  test::TemporaryDirectory directory_;
  SnapshotWorld world_{{}};
};

TEST_F(SnapshotRestartTest, WhatWasWrittenThroughIsFoundAgain) {
  Start(WritePolicy::kWriteThrough);
  for (const std::int64_t number : {1, 2, 3})
    ASSERT_EQ(world_.Store(number, 64 * number).result, SnapshotResult::kStored);
  ASSERT_EQ(world_.Store(4, 64, TestSpace("other")).result, SnapshotResult::kStored);
  world_.store->WaitUntilIdle();
  Start(WritePolicy::kWriteThrough);
  EXPECT_THAT(world_.Numbers(9), ElementsAre(1, 2, 3));
  EXPECT_THAT(world_.Numbers(9, TestSpace("other")), ElementsAre(4));
  const std::optional<SnapshotStore::Lookup> lookup = world_.Lookup({1, 2, 3, 4}, absl::Seconds(10));
  ASSERT_TRUE(lookup.has_value());
  EXPECT_EQ(lookup->index, 2);
  EXPECT_EQ(lookup->snapshot.position, 192);
  EXPECT_THAT(lookup->snapshot.tiers, ElementsAre(TierKind::kDisk));
  for (const std::int64_t number : {1, 2, 3}) world_.ExpectIntact(number);
  world_.ExpectIntact(4, TestSpace("other"));
}

TEST_F(SnapshotRestartTest, WrittenBackItIsThereAfterAFlushAndElseNot) {
  Start(WritePolicy::kWriteBack);
  ASSERT_EQ(world_.Store(1).result, SnapshotResult::kStored);
  EXPECT_EQ(world_.store->Flush(absl::Seconds(60)).written, 1);
  ASSERT_EQ(world_.Store(2).result, SnapshotResult::kStored);
  Start(WritePolicy::kWriteBack);
  EXPECT_THAT(world_.Numbers(9), ElementsAre(1));
  world_.ExpectIntact(1);
}

TEST_F(SnapshotRestartTest, WhatWasDeletedDoesNotComeBack) {
  Start(WritePolicy::kWriteThrough);
  ASSERT_EQ(world_.Store(1).result, SnapshotResult::kStored);
  ASSERT_EQ(world_.Store(2).result, SnapshotResult::kStored);
  world_.store->WaitUntilIdle();
  ASSERT_EQ(*world_.Delete({1}), 1);
  Start(WritePolicy::kWriteThrough);  // at once: the store's end removes it
  EXPECT_THAT(world_.Numbers(9), ElementsAre(2));
  EXPECT_EQ(Files().size(), 1);
}

TEST_F(SnapshotRestartTest, DamagedBytesAreDroppedAndCanBeStoredAnew) {
  Start(WritePolicy::kWriteThrough);
  ASSERT_EQ(world_.Store(1).result, SnapshotResult::kStored);
  world_.store->WaitUntilIdle();
  world_.store.reset();
  {
    ASSERT_EQ(Files().size(), 1);
    std::fstream file(Files().front(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    const int last = file.peek();
    file.put(static_cast<char>(last ^ 1));
  }
  Start(WritePolicy::kWriteThrough);
  EXPECT_TRUE(world_.Has(1));
  EXPECT_TRUE(absl::IsDataLoss(world_.Fetch(1).status()));
  EXPECT_FALSE(world_.Has(1));
  EXPECT_EQ(world_.store->counters().checksum_failures, 1);
  ASSERT_EQ(world_.Store(1).result, SnapshotResult::kStored);
  world_.store->WaitUntilIdle();
  Start(WritePolicy::kWriteThrough);
  world_.ExpectIntact(1);
  EXPECT_EQ(Files().size(), 1);
}

TEST_F(SnapshotRestartTest, ASmallerDiskKeepsTheMostRecentlyUsed) {
  Start(WritePolicy::kWriteThrough);
  std::set<std::filesystem::path> known;
  for (std::int64_t number = 1; number <= 6; ++number) {
    ASSERT_EQ(world_.Store(number).result, SnapshotResult::kStored);
    world_.store->WaitUntilIdle();
    for (const std::filesystem::path& file : Files()) {
      if (!known.insert(file).second) continue;
      // By itself it would be as old as the others: the file system's clock is coarse.
      std::filesystem::last_write_time(file,
                                       std::filesystem::file_time_type::clock::now() - std::chrono::hours(10 - number));
    }
  }
  const std::int64_t file_bytes = world_.used(TierKind::kDisk) / 6;
  Start(WritePolicy::kWriteThrough, 3 * file_bytes + file_bytes / 2);
  world_.store->WaitUntilIdle();
  EXPECT_THAT(world_.Numbers(9), ElementsAre(4, 5, 6));
  EXPECT_EQ(Files().size(), 3);
}

}  // namespace
}  // namespace gdpcache::cache
