#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_STORE_STATE_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_STORE_STATE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "server/cache/clock.h"
#include "server/cache/snapshots/load_queue.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/cache/snapshots/pending_snapshots.h"
#include "server/cache/snapshots/snapshot_index.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/cache/snapshots/tier.h"
#include "server/cache/snapshots/watch_queue.h"

namespace gdpcache::cache {

class StoreState;

/// What is to happen after the lock has been released: make one before taking it.
class Aftermath {
 public:
  explicit Aftermath(const StoreState& state) : state_(state) {}
  Aftermath(const Aftermath&) = delete;
  Aftermath& operator=(const Aftermath&) = delete;
  ~Aftermath();

  void Wake(std::shared_ptr<WatchQueue> watch) { watches_.push_back(std::move(watch)); }
  void Log(std::string line) { lines_.push_back(std::move(line)); }
  void Finish(std::vector<SnapshotStore::FetchDone> waiters, absl::StatusOr<SnapshotStore::Fetched> result) {
    finished_.emplace_back(std::move(waiters), std::move(result));
  }

 private:
  const StoreState& state_;
  std::vector<std::shared_ptr<WatchQueue>> watches_;
  std::vector<std::string> lines_;
  std::vector<std::pair<std::vector<SnapshotStore::FetchDone>, absl::StatusOr<SnapshotStore::Fetched>>> finished_;
};

/// A snapshot on its way from disk to memory, and who waits for it.
struct SnapshotLoad {
  std::shared_ptr<SnapshotEntry> entry;
  std::vector<SnapshotStore::FetchDone> waiters;
  bool promote = false;   // into the first tier afterwards
  bool last_try = false;  // no room can be made any more
};

/// A tier of the store.
struct StoreLevel {
  std::unique_ptr<Tier> tier;
  MemoryTier* memory = nullptr;  // the tier, if it is one
  std::int64_t high_watermark = 0;
  std::int64_t low_watermark = 0;

  // Of the thread that makes room in it.
  bool over = false;                                  // has passed its high watermark and must get below the low one
  bool wanted = false;                                // somebody needs room whatever the watermarks say
  bool waiting = false;                               // the tier below has to make room first
  bool relieving = false;                             // a copy is on its way out
  std::int64_t left = 0;                              // copies that have left it so far
  bool stuck = false;                                 // nothing can leave until something changes
  bool troubled = false;                              // the last copy for it could not be made; has been logged
  std::vector<std::shared_ptr<SnapshotLoad>> parked;  // wait for room in it
};

/// Pinned snapshots under one name.
struct SnapshotPin {
  std::shared_ptr<SpaceIndex> space;  // counted as a user of it
  std::vector<std::shared_ptr<SnapshotEntry>> entries;
  absl::Time expires;
};

/// What the store's callers and its background threads share. Functions named ...Locked need `mutex`; the others take
/// it. It is never held while bytes are copied.
class StoreState {
 public:
  StoreState(kernels::Backend& backend, const Clock& clock, std::vector<StoreTier> tiers, SnapshotOptions options);
  StoreState(const StoreState&) = delete;
  StoreState& operator=(const StoreState&) = delete;
  ~StoreState();

  std::size_t last() const { return levels.size() - 1; }
  bool has_disk() const { return !levels.empty() && levels.back().memory == nullptr; }
  /// Where what is loaded from disk goes.
  std::size_t load_level() const { return last() - 1; }

  /// RESOURCE_EXHAUSTED when the level is too small for a whole snapshot of the space, whatever leaves it: to be asked
  /// before anything is made to.
  absl::Status CheckFits(std::size_t level, const SnapshotSpace& space) const;

  /// Memory at once, from free room or from copies that may go; RESOURCE_EXHAUSTED else.
  absl::StatusOr<SnapshotMemory> Allocate(std::size_t level, const SnapshotSpace& space, std::int64_t count);

  /// Takes `bytes` of the tenant's quota, evicting its least recently used snapshots; RESOURCE_EXHAUSTED names both.
  absl::Status ChargeLocked(TenantAccount& tenant, std::int64_t bytes, Aftermath& aftermath);
  /// Whether the tenant may begin one more snapshot that comes part by part; RESOURCE_EXHAUSTED names what there are.
  absl::Status CheckUnfinishedLocked(const TenantAccount& tenant) const;
  /// Counts what it will take of the first tier as its tenant's: until it is finished that does not give way to others.
  /// RESOURCE_EXHAUSTED names the tenant's share, what is taken of it and what is needed.
  absl::Status TakeUnfinishedRoomLocked(PendingSnapshot& unfinished);
  /// Room for one more in the index.
  absl::Status MakeIndexRoomLocked(Aftermath& aftermath);

  /// Makes it findable; the tenant has been charged.
  void PublishLocked(const std::shared_ptr<SpaceIndex>& space, absl::string_view key, std::int64_t position,
                     std::size_t level, std::shared_ptr<TierCopy> copy, Aftermath& aftermath);
  void RemoveLocked(SnapshotEntry& entry, SnapshotEvent::Type type, Aftermath& aftermath);
  /// Drops one copy; the snapshot is evicted if it was the last one.
  void DropCopyLocked(SnapshotEntry& entry, std::size_t level, Aftermath& aftermath);
  /// Gives memory back at once, so that whoever sees that there is room can have it; the writer removes from disk.
  void DiscardLocked(std::size_t level, std::shared_ptr<TierCopy> copy);
  /// Notes a use; a copy comes closer when it was not the first.
  void UseLocked(SnapshotEntry& entry);

  /// Gives back what it has and is charged for; its open drafts come to nothing.
  void EndPendingLocked(PendingSnapshot& pending);
  /// The same, but remembers why.
  void FailPendingLocked(PendingSnapshot& pending, absl::string_view failure);

  /// `entries` distinct. Empty when that would exceed the tenant's budget.
  std::string PinLocked(SpaceIndex& space, std::vector<std::shared_ptr<SnapshotEntry>> entries, absl::Duration ttl,
                        std::string* refusal);
  bool UnpinLocked(const SpaceIndex& space, absl::string_view pin);

  /// Ends a session's unfinished snapshots, or what has run out of time, but no more at once than others may wait for.
  /// False when there is more.
  bool EndSessionLocked(SessionKey session);
  bool ExpireLocked();

  /// Begins to load a snapshot that is on disk only, or joins a load that has begun.
  SnapshotLoad& LoadLocked(SnapshotEntry& entry);
  void PromoteLocked(SnapshotEntry& entry);
  /// To be called after the use of a level may have grown.
  void CheckWatermarkLocked(std::size_t level);
  void WantRoomLocked(std::size_t level);
  void NotifyReliefLocked(std::size_t level);

  SnapshotSummary SummaryLocked(const SnapshotEntry& entry) const;

  kernels::Backend& backend;
  const Clock& clock;
  const SnapshotOptions options;

  std::mutex mutex;
  // Everything below is guarded by it, the levels' tiers and watermarks excepted.
  std::vector<StoreLevel> levels;
  SnapshotIndex index;
  PendingSnapshots pending;
  SnapshotCounters counters;
  absl::flat_hash_map<std::string, SnapshotPin> pins;
  std::set<std::pair<absl::Time, std::string>> pins_by_expiry;
  std::int64_t watches = 0;

  // For the background threads: one condition for each kind of them.
  bool stopping = false;
  std::int64_t busy = 0;  // threads that work on something
  bool writing = false;   // the writer works on one of `writes`
  std::condition_variable load_work;
  std::condition_variable move_work;
  std::condition_variable write_work;
  std::condition_variable idle;
  LoadQueue loads;
  std::deque<std::shared_ptr<SnapshotEntry>> promotions;
  std::deque<std::shared_ptr<SnapshotEntry>> writes;              // to disk
  std::vector<std::shared_ptr<TierCopy>> removals;                // from disk
  std::vector<absl::AnyInvocable<void(absl::Status)>> deletions;  // see SnapshotStore::AfterDeletions

 private:
  void EmitLocked(SpaceIndex& space, const SnapshotEvent& event, Aftermath& aftermath);
  void EndPinLocked(absl::flat_hash_map<std::string, SnapshotPin>::iterator pin);
  void QueueWriteLocked(const std::shared_ptr<SnapshotEntry>& entry);
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_STORE_STATE_H_
