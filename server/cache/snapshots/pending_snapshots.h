#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_PENDING_SNAPSHOTS_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_PENDING_SNAPSHOTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/slot_table.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/cache/snapshots/snapshot_index.h"

namespace gdpcache::cache {

/// A snapshot whose parts come one by one, from one session.
struct PendingSnapshot {
  SessionKey session = 0;
  std::shared_ptr<SpaceIndex> space;  // counted as a user of it
  std::string key;
  std::int64_t position = 0;
  // By layer, only those that there are: nobody is charged for the memory of anything else here.
  std::map<std::int64_t, SnapshotMemory> parts;  // delivered
  absl::flat_hash_set<std::int64_t> begun;
  std::int64_t open_drafts = 0;
  std::int64_t room = 0;  // what it will take of the first tier, counted in the tenant's unfinished_bytes
  absl::Time last_part;   // or when it was begun
  /// Why it will not become one, if so: a part found no room. Then it has no parts and is charged to nobody, and stays
  /// only so that the layers after do not begin anew.
  std::string failure;
  bool gone = false;   // it has ended, one way or the other
  bool whole = false;  // all its parts come with one draft, and nobody else knows of it

  void GiveBackRoom() { space->tenant.unfinished_bytes -= std::exchange(room, 0); }
};

/// All of them. Not thread-safe.
class PendingSnapshots {
 public:
  std::shared_ptr<PendingSnapshot> Find(SessionKey session, const SpaceIndex& space, absl::string_view key) const;
  void Add(std::shared_ptr<PendingSnapshot> pending);
  void Remove(PendingSnapshot& pending);
  void SetLastPart(PendingSnapshot& pending, absl::Time time);

  /// At most `most` of them.
  std::vector<std::shared_ptr<PendingSnapshot>> OfSession(SessionKey session, std::size_t most) const;
  std::vector<std::shared_ptr<PendingSnapshot>> LastPartUntil(absl::Time time, std::size_t most) const;
  std::int64_t size() const { return static_cast<std::int64_t>(by_time_.size()); }

 private:
  using Name = std::pair<const SpaceIndex*, std::string>;

  absl::flat_hash_map<SessionKey, absl::flat_hash_map<Name, std::shared_ptr<PendingSnapshot>>> sessions_;
  std::set<std::pair<absl::Time, PendingSnapshot*>> by_time_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_PENDING_SNAPSHOTS_H_
