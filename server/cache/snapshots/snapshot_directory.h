#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_DIRECTORY_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/snapshots/disk_incident.h"
#include "server/cache/snapshots/file_system.h"
#include "server/cache/snapshots/snapshot_file.h"

namespace gdpcache::cache {

/// What a file is called: random, so that no two ever have the same name, whatever keys and tenants callers choose.
struct SnapshotFileId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  static SnapshotFileId Random();
};

/// A directory of snapshot files and its lock. Thread-safe.
///
///   DIRECTORY/lock                          held by the one server that uses the directory
///   DIRECTORY/temporary/ID.safetensors      being written
///   DIRECTORY/FF/ID.safetensors             whole, and on the medium; ID is 32 hexadecimal digits, FF its first two
///
/// A file appears under its last name only when it has been written and synchronised, so a server may be killed at any
/// moment. What a file held is told by its metadata alone. Nothing is readable for others; symbolic links are not
/// followed inside the directory.
class SnapshotDirectory {
 public:
  /// Creates the directory if need be (its parent must be there) and takes its lock: FAILED_PRECONDITION when another
  /// server has it. `file_system` must outlive the object.
  static absl::StatusOr<std::unique_ptr<SnapshotDirectory>> Open(std::string path, FileSystem& file_system);

  struct Found {
    SnapshotFileId id;
    std::int64_t file_bytes = 0;
    absl::Time modified;
    SnapshotFileInfo info;
  };
  struct ScanResult {
    std::vector<Found> files;             // least recently modified first
    std::vector<DiskIncident> incidents;  // at most one of each kind
  };
  /// Removes what was being written when the last server ended, and looks at the beginning of every file. Files that
  /// are damaged, and all but the newest of one key, are removed. To be called before anything is written.
  ScanResult Scan();

  struct Places;

  /// A new file under a temporary name, for writing. Without Publish it is removed at the end.
  class NewFile {
   public:
    NewFile(SnapshotDirectory& directory, std::shared_ptr<const Places> places, SnapshotFileId id, OpenFile file);
    NewFile(NewFile&&) noexcept;
    NewFile& operator=(NewFile&&) = delete;
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;
    ~NewFile();

    int fd() const { return file_.get(); }
    SnapshotFileId id() const { return id_; }

    /// Synchronises the file and gives it its last name, for good once this has returned OK.
    absl::Status Publish();

   private:
    SnapshotDirectory& directory_;
    std::shared_ptr<const Places> places_;
    SnapshotFileId id_;
    OpenFile file_;
    bool owned_ = true;
  };
  /// Makes the directory anew, and takes its lock, when somebody has removed it meanwhile.
  absl::StatusOr<NewFile> Create();

  /// Opens a file for reading. DATA_LOSS when it is not there any more or is no regular file, else as ReadFailure.
  absl::StatusOr<OpenFile> OpenForReading(SnapshotFileId id);

  /// OK also when it, or its directory, is not there. A power failure may bring a removed file back, unless
  /// SyncRemovals comes first.
  absl::Status Remove(SnapshotFileId id);

  /// Brings to the medium that the files removed by now are gone.
  absl::Status SyncRemovals();

  /// RESOURCE_EXHAUSTED when the file system has less than `bytes` left.
  absl::Status CheckFree(std::int64_t bytes);

  const std::string& path() const { return path_; }
  std::string Path(SnapshotFileId id) const;
  FileSystem& file_system() const { return file_system_; }

  /// The status for a failed call: RESOURCE_EXHAUSTED when there is no room, else UNAVAILABLE. `error` is -errno.
  static absl::Status Failure(std::int64_t error, absl::string_view action, absl::string_view path);
  /// The same for reading a file: UNAVAILABLE when the process or the system has had too little of something, and
  /// another try may succeed; else INTERNAL. Clients get to see it, so it names no path.
  static absl::Status ReadFailure(std::int64_t error, absl::string_view action);

 private:
  class Scanner;

  SnapshotDirectory(std::string path, FileSystem& file_system, std::shared_ptr<const Places> places);

  /// Creates what is missing; `before`, if any, holds the lock of what was there before.
  static absl::StatusOr<std::shared_ptr<const Places>> OpenPlaces(const std::string& path, FileSystem& file_system,
                                                                  const Places* before);
  std::shared_ptr<const Places> places() const;
  absl::Status Renew();

  OpenFile OpenDirectory(const Places& places, const std::string& name) const;
  absl::StatusOr<OpenFile> MakeFanOut(const Places& places, SnapshotFileId id) const;

  const std::string path_;
  FileSystem& file_system_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<const Places> places_;
  std::set<std::string> unsynchronised_;  // fan-outs that files were removed from
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_DIRECTORY_H_
