#ifndef GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_DISK_TIER_FIXTURE_H_
#define GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_DISK_TIER_FIXTURE_H_

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/cache/snapshots/disk_tier.h"
#include "server/cache/snapshots/snapshot_file.h"
#include "tests/support/fault_injecting_file_system.h"
#include "tests/support/heap_backend.h"
#include "tests/support/sample_snapshot.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::cache {

inline constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

/// What a tier found when it was opened.
struct RecoveredSnapshot {
  SnapshotRecord record;
  std::shared_ptr<TierCopy> copy;
};

/// A tier in a directory of its own, on a file system that can be made to fail.
class DiskTierTest : public ::testing::Test {
 protected:
  DiskTierTest() : stream_(*heap_.CreateStream()) {}

  DiskTier::Options Options() {
    DiskTier::Options options;
    options.directory = root_;
    options.capacity = 64 * kMebibyte;
    options.file_system = &file_system_;
    options.report = [this](const DiskIncident& incident) {
      const std::lock_guard lock(mutex_);
      incidents_.push_back(incident);
    };
    return options;
  }

  absl::StatusOr<std::unique_ptr<DiskTier>> TryOpen(const DiskTier::Options& options) {
    recovered_.clear();
    told_before_ = Incidents().size();
    return DiskTier::Open(options, heap_, [this](SnapshotRecord record, std::shared_ptr<TierCopy> copy) {
      recovered_.push_back({std::move(record), std::move(copy)});
    });
  }

  /// A tier of the directory, after the end of the one before.
  DiskTier& Reopen() {
    recovered_.clear();
    tier_ = nullptr;
    absl::StatusOr<std::unique_ptr<DiskTier>> tier = TryOpen(Options());
    EXPECT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    return *tier_;
  }

  absl::StatusOr<std::shared_ptr<TierCopy>> Store(DiskTier& tier, const test::SampleSnapshot& snapshot) {
    return tier.Store(snapshot.record(), snapshot.parts(), *stream_);
  }

  /// Must succeed.
  std::shared_ptr<TierCopy> MustStore(DiskTier& tier, const test::SampleSnapshot& snapshot) {
    absl::StatusOr<std::shared_ptr<TierCopy>> copy = Store(tier, snapshot);
    EXPECT_TRUE(copy.ok()) << copy.status();
    return copy.ok() ? *std::move(copy) : nullptr;
  }

  /// Loads the copy; OK only when it is `snapshot`.
  absl::Status Load(const TierCopy& copy, const test::SampleSnapshot& snapshot) {
    std::vector<std::byte> data(snapshot.data().size());
    const std::vector<SnapshotPart> parts = PartsIn(snapshot.record().space, data.data());
    if (absl::Status status = copy.Load(parts, *stream_); !status.ok()) return status;
    return data == snapshot.data() ? absl::OkStatus() : absl::InternalError("other content than was stored");
  }

  /// Every file below the directory but the lock.
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const std::filesystem::directory_entry& entry : std::filesystem::recursive_directory_iterator(root_)) {
      if (!entry.is_directory() && entry.path().filename() != "lock") files.push_back(entry.path());
    }
    return files;
  }

  std::vector<DiskIncident::Kind> Incidents() {
    const std::lock_guard lock(mutex_);
    std::vector<DiskIncident::Kind> kinds;
    for (const DiskIncident& incident : incidents_) kinds.push_back(incident.kind);
    return kinds;
  }

  /// Files of that kind that the tier opened last has told of.
  std::int64_t Told(DiskIncident::Kind kind) {
    const std::lock_guard lock(mutex_);
    std::int64_t files = 0;
    for (std::size_t n = told_before_; n < incidents_.size(); ++n) {
      if (incidents_[n].kind == kind) files += incidents_[n].files;
    }
    return files;
  }

  std::vector<std::string> RecoveredKeys() const {
    std::vector<std::string> keys;
    for (const RecoveredSnapshot& recovered : recovered_) keys.push_back(recovered.record.key);
    return keys;
  }

  static void Overwrite(const std::string& path, absl::string_view content) {
    std::filesystem::remove(path);  // some file systems flush what is truncated
    std::ofstream(path, std::ios::binary) << content;
  }

  static void Age(const std::string& path, std::chrono::hours age) {
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - age);
  }

  test::TemporaryDirectory directory_;
  std::string root_ = directory_.path() + "/snapshots";
  test::FaultInjectingFileSystem file_system_;
  test::HeapBackend heap_;
  std::unique_ptr<kernels::Stream> stream_;
  std::mutex mutex_;
  std::vector<DiskIncident> incidents_;
  std::size_t told_before_ = 0;
  std::unique_ptr<DiskTier> tier_;
  std::vector<RecoveredSnapshot> recovered_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_DISK_TIER_FIXTURE_H_
