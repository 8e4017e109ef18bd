#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_DISK_TIER_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_DISK_TIER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/disk_incident.h"
#include "server/cache/snapshots/file_system.h"
#include "server/cache/snapshots/snapshot_directory.h"
#include "server/cache/snapshots/tier.h"

namespace gdpcache::cache {

/// Keeps each snapshot as one file (snapshot_file.h) of a directory (snapshot_directory.h). A copy has reached the
/// medium when Store returns it. Nothing that goes wrong with the disk is fatal: the call fails and is told as an
/// incident, no unfinished file stays behind, and the next call tries again. Must outlive its copies; its files outlive
/// both.
class DiskTier final : public Tier {
 public:
  struct Options {
    std::string directory;
    std::int64_t capacity = 0;                        // bytes of all files together
    std::function<void(const DiskIncident&)> report;  // runs on any thread; may be empty
    FileSystem* file_system = &RealFileSystem();
  };

  /// Takes the directory and calls `recovered`, on this thread, for each snapshot found there, least recently used
  /// first: a file is as old as its last Load. Reads only the beginning of each file; whether the rest is right shows
  /// when it is loaded. FAILED_PRECONDITION when another server has the directory; UNAVAILABLE when it cannot be used.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(Options options, kernels::Backend& backend,
                                                        const RecoveredCallback& recovered);

  TierKind kind() const override { return TierKind::kDisk; }
  std::int64_t capacity() const override { return capacity_; }
  std::int64_t used() const override { return used_; }
  absl::StatusOr<std::shared_ptr<TierCopy>> Store(const SnapshotRecord& record, absl::Span<const SnapshotPart> source,
                                                  kernels::Stream& stream) override;
  absl::Status SyncRemovals() override;

 private:
  class Copy;
  class Bounce;

  DiskTier(Options options, kernels::Backend& backend, std::unique_ptr<SnapshotDirectory> directory);

  void Report(const DiskIncident& incident) const {
    if (report_) report_(incident);
  }
  absl::Status Reserve(std::int64_t bytes);
  absl::Status Write(const SnapshotDirectory::NewFile& file, SnapshotFileWriter& writer,
                     absl::Span<const SnapshotPart> source, kernels::Stream& stream);
  absl::StatusOr<SnapshotFileId> StoreFile(SnapshotFileWriter& writer, const SnapshotSpace& space,
                                           absl::Span<const SnapshotPart> source, kernels::Stream& stream);

  /// Memory between device and file; none where the host reaches all memory.
  absl::StatusOr<Bounce> TakeBounce();

  kernels::Backend& backend_;
  const bool direct_;  // the host reaches all of the backend's memory
  const std::int64_t capacity_;
  const std::function<void(const DiskIncident&)> report_;
  std::unique_ptr<SnapshotDirectory> directory_;
  std::atomic<std::int64_t> used_ = 0;
  std::atomic<bool> removal_failed_ = false;
  std::mutex mutex_;
  std::vector<kernels::Buffer> idle_bounces_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_DISK_TIER_H_
