#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_DISK_INCIDENT_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_DISK_INCIDENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/clock.h"

namespace gdpcache::cache {

/// Something wrong with the disk tier that its operator should know. The server goes on.
struct DiskIncident {
  enum class Kind : std::uint8_t {
    kFull,          // the file system has no room
    kWriteFailed,   // a snapshot was not stored
    kReadFailed,    // a file cannot be read now; it is left alone
    kDamaged,       // a file is not what was stored; the scan removes such files
    kForeign,       // not ours, or of another version; left alone
    kLeftover,      // an unfinished file of a server that was killed; removed
    kRemoveFailed,  // a file could not be removed; a later server may find it again
  };
  static constexpr std::size_t kKinds = 7;

  Kind kind = Kind::kFull;
  std::string path;        // of one of them
  std::int64_t files = 1;  // the scan tells each kind once
  absl::Status status;     // what is wrong with that one
};

/// "full", "write_failed", ...
absl::string_view Name(DiskIncident::Kind kind);

/// Passes on the first incident of each kind, and then one in a while that stands for those since: a disk that stays
/// full is met by every snapshot. Thread-safe.
class IncidentDigest {
 public:
  static constexpr absl::Duration kPeriod = absl::Minutes(1);

  /// `clock` must outlive the object.
  IncidentDigest(const Clock& clock, std::function<void(const DiskIncident&)> report)
      : clock_(clock), report_(std::move(report)) {}

  void Add(DiskIncident incident);

 private:
  struct Kind {
    absl::Time told = absl::InfinitePast();
    std::int64_t files = 0;  // since
  };

  const Clock& clock_;
  const std::function<void(const DiskIncident&)> report_;
  std::mutex mutex_;
  std::array<Kind, DiskIncident::kKinds> kinds_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_DISK_INCIDENT_H_
