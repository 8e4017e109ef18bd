#ifndef GDPCACHE_SERVER_CACHE_MEMORY_SESSION_REGIONS_H_
#define GDPCACHE_SERVER_CACHE_MEMORY_SESSION_REGIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/cache/memory/region.h"

namespace gdpcache::cache {

/// The regions and events of one session, by name. Whoever uses one holds it, so that it stays until the last use is
/// over. Thread-safe.
class SessionRegions {
 public:
  /// INVALID_ARGUMENT for a name of no or more than 128 bytes, ALREADY_EXISTS; NOT_FOUND when the session has ended.
  absl::Status Add(absl::string_view name, std::shared_ptr<Region> region);

  /// NOT_FOUND when there is none.
  absl::StatusOr<std::shared_ptr<Region>> Find(absl::string_view name) const;

  /// The name is free at once; `on_released` runs when nobody uses the region any more and it has been let go of, maybe
  /// before this returns. Not after an error: NOT_FOUND when there is none.
  absl::Status Remove(absl::string_view name, absl::AnyInvocable<void()> on_released);

  struct Entry {
    std::string name;
    RegionKind kind = RegionKind::kSystem;
    std::uint64_t size = 0;
    std::int64_t uses = 0;
  };
  std::vector<Entry> List() const;  // by name

  /// Lets go of everything, for the end of the session: nothing can be added any more.
  void Close();

 private:
  using Map = std::map<std::string, std::shared_ptr<Region>, std::less<>>;

  mutable std::mutex mutex_;
  bool closed_ = false;
  Map regions_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_MEMORY_SESSION_REGIONS_H_
