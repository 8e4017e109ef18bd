#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_STORE_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_STORE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/cache/clock.h"
#include "server/cache/slot_table.h"
#include "server/cache/snapshots/snapshot.h"
#include "server/cache/snapshots/tier.h"
#include "server/cache/tenant_share.h"

namespace gdpcache::cache {

/// What became of a snapshot that somebody wanted kept; snapshot.proto documents the values.
enum class SnapshotResult : std::uint8_t { kPending, kStored, kPresent, kNoSpace };

struct SnapshotOutcome {
  SnapshotResult result = SnapshotResult::kPending;
  std::int64_t position = 0;
  std::string message;  // with kNoSpace
};

/// Memory for some layers of a snapshot, to be written and then committed. Movable; without a commit its end gives the
/// memory back, so nothing may be writing to it any more then.
class SnapshotDraft {
 public:
  class Memory;  // the store's

  SnapshotDraft();
  SnapshotDraft(SnapshotOutcome outcome);  // NOLINT(google-explicit-constructor): nothing to write
  SnapshotDraft(SnapshotOutcome outcome, std::unique_ptr<Memory> memory);
  SnapshotDraft(SnapshotDraft&& other) noexcept;
  SnapshotDraft& operator=(SnapshotDraft&& other) noexcept;
  ~SnapshotDraft();

  /// kPending: parts() are to be written and the draft committed. Otherwise nothing is to be done.
  const SnapshotOutcome& outcome() const { return outcome_; }
  /// One per layer that the draft covers, in memory that the backend's CopyBytes reaches; empty unless kPending.
  absl::Span<const SnapshotPart> parts() const;

 private:
  friend class SnapshotStore;
  SnapshotOutcome outcome_;
  std::unique_ptr<Memory> memory_;
};

struct SnapshotSummary {
  std::string key;
  std::int64_t position = 0;
  std::int64_t bytes = 0;
  std::vector<TierKind> tiers;  // fastest first
  bool pinned = false;
  absl::Time stored;
  absl::Time used;
};

struct SnapshotEvent {
  enum class Type : std::uint8_t { kStored, kEvicted, kDeleted, kSynced };
  Type type = Type::kStored;
  std::string key;
  std::int64_t position = 0;
};

/// What happens to the snapshots of one space, from the moment it is made. Thread-safe; its end ends the watching.
class SnapshotWatch {
 public:
  SnapshotWatch() = default;
  SnapshotWatch(const SnapshotWatch&) = delete;
  SnapshotWatch& operator=(const SnapshotWatch&) = delete;
  virtual ~SnapshotWatch() = default;

  /// The next events, in order; to be called again until there are none. RESOURCE_EXHAUSTED once more have waited than
  /// the store keeps for a watcher.
  virtual absl::StatusOr<std::vector<SnapshotEvent>> Take() = 0;
};

struct SnapshotLimits {
  std::int64_t tenant_bytes = 0;  // of one tenant's snapshots, each counted once whatever its tiers; 0: no quota
  std::int64_t pinned_bytes = 0;  // of one tenant's pinned snapshots
  std::int64_t max_watches = 0;   // at a time
  std::int64_t max_tenant_watches = std::numeric_limits<std::int64_t>::max();  // of one tenant
  absl::Duration max_pin_ttl;                                                  // the most, and what 0 takes
  absl::Duration pending_timeout;  // of an unfinished snapshot, from its last part
  TenantShare tenant_share = {};   // of max_pending, and for them of the first tier, or of it one of any size

  // What bounds the store's own memory.
  std::int64_t max_snapshots = 4'194'304;
  std::int64_t max_pending = 65'536;       // unfinished ones
  std::int64_t max_pins = 262'144;         // snapshots that one tenant's pins and leases name
  std::int64_t max_watch_events = 65'536;  // that wait for one watcher
};

/// When a snapshot is written to disk: right after it has been published, or when it leaves the tiers above and when
/// the store is flushed.
enum class WritePolicy : std::uint8_t { kWriteThrough, kWriteBack };

struct SnapshotOptions {
  SnapshotLimits limits;
  WritePolicy write_policy = WritePolicy::kWriteThrough;
  /// Told, in a line, what has gone wrong in the background; on any thread, without a lock held. May be empty.
  std::function<void(absl::string_view)> log = {};
};

/// Since the store was made.
struct SnapshotCounters {
  std::int64_t stored = 0;
  std::int64_t evicted = 0;  // damaged ones included
  std::int64_t deleted = 0;
  std::int64_t abandoned = 0;  // ended unfinished
  std::int64_t hits = 0;       // of LookupPrefix
  std::int64_t misses = 0;
  std::int64_t hit_tokens = 0;  // positions found
  std::int64_t promotions = 0;  // copies made in a faster tier
  std::int64_t demotions = 0;   // copies made in a slower tier
  std::int64_t checksum_failures = 0;
  std::int64_t tier_errors = 0;  // copies that could not be made or read for another reason than want of room
};

/// A tier with the share of it, in bytes, at which moving and evicting begins and stops.
struct StoreTier {
  std::unique_ptr<Tier> tier;
  std::int64_t high_watermark = 0;
  std::int64_t low_watermark = 0;
};

class StoreState;
class TierMovers;

/// All snapshots of the server: who may find which, where their copies are, and which goes when room is needed.
/// Thread-safe. snapshot.proto documents what the operations do; here stands what concerns the code that calls.
///
/// New snapshots are written into the first (device) tier. Copies move down in the background when a tier passes its
/// high watermark, until it is below the low one; what falls out of the last tier is evicted. Nothing here waits for
/// such a move except Fetch's callback and Flush.
///
/// Drafts and watches must be gone before the store; copies may outlive it, the backend must outlive them.
class SnapshotStore {
 public:
  /// `tiers` fastest first, each kind at most once; the disk, if any, last and not alone. None: nothing is kept.
  /// INVALID_ARGUMENT otherwise; errors of the backend when its threads get no stream.
  static absl::StatusOr<std::unique_ptr<SnapshotStore>> Create(kernels::Backend& backend, const Clock& clock,
                                                               std::vector<StoreTier> tiers, SnapshotOptions options);
  SnapshotStore(const SnapshotStore&) = delete;
  SnapshotStore& operator=(const SnapshotStore&) = delete;
  ~SnapshotStore();  // fetches that are not done end with UNAVAILABLE

  /// What the last tier kept from an earlier run can be found from now on. To be called, least recently used first,
  /// before anything is stored. One that is there already, or for which there is no room, is passed over.
  void Recover(const SnapshotRecord& record, std::shared_ptr<TierCopy> copy);

  /// One layer's part of a snapshot that `session` puts together. Memory comes from the first tier, evicting what can
  /// go at once. FAILED_PRECONDITION when the session's other parts of this key are at another position.
  absl::StatusOr<SnapshotDraft> BeginPart(SessionKey session, const SnapshotRecord& record, std::int64_t layer);

  /// All layers at once, in the memory tier of `kind` (the first tier if there is none).
  SnapshotDraft BeginWhole(const SnapshotRecord& record, TierKind kind);

  /// To be called when everything has been written and the writing stream was synchronized.
  SnapshotOutcome Commit(SnapshotDraft draft);

  /// Drops what the session has not finished.
  void EndSession(SessionKey session);

  struct Fetched {
    std::shared_ptr<const TierCopy> copy;
    std::int64_t position = 0;  // of this very copy
  };
  using FetchDone = absl::AnyInvocable<void(absl::StatusOr<Fetched>)>;
  struct Found {
    std::int64_t position = 0;
    std::int64_t bytes = 0;
  };
  /// A copy of the snapshot with parts() in memory, which stay readable as long as it is held. `done` runs once: before
  /// the call returns when there is such a copy, else on a thread of the store. NOT_FOUND, DATA_LOSS,
  /// RESOURCE_EXHAUSTED. Counts as a use.
  void Fetch(const SnapshotSpace& space, absl::string_view key, FetchDone done);

  /// Position and size without using it; nullopt when it is not there.
  std::optional<Found> Find(const SnapshotSpace& space, absl::string_view key) const;

  struct Lookup {
    std::int64_t index = 0;
    SnapshotSummary snapshot;
    std::string pin;  // empty: none
  };
  /// The last of `keys` that is there. Begins to load it where that will be needed to restore it.
  std::optional<Lookup> LookupPrefix(const SnapshotSpace& space, absl::Span<const absl::string_view> keys,
                                     absl::Duration lease);

  struct Pinned {
    std::string pin;
    absl::Duration ttl;
  };
  absl::StatusOr<Pinned> Pin(const SnapshotSpace& space, absl::Span<const absl::string_view> keys, absl::Duration ttl);
  absl::Status Unpin(const SnapshotSpace& space, absl::string_view pin);

  /// How many were deleted.
  absl::StatusOr<std::int64_t> Delete(const SnapshotSpace& space, absl::Span<const absl::string_view> keys, bool force);

  /// Calls `done` when nothing that has been deleted so far can come back, whatever happens to the server or its host:
  /// before this returns where no disk is used, else on the thread that writes to it, so it must be short. UNAVAILABLE
  /// when the disk has not done its part.
  void AfterDeletions(absl::AnyInvocable<void(absl::Status)> done);

  /// At most `limit` snapshots whose keys come after `after` (empty: from the first), in the keys' order.
  std::vector<SnapshotSummary> List(const SnapshotSpace& space, absl::string_view after, std::int64_t limit) const;

  /// `wake` runs, on any thread, maybe on several at a time and without a lock held, when there is something to take
  /// after there was nothing. With `existing` there is from the start: no wake for that. It may still be running when
  /// the watch has just ended. RESOURCE_EXHAUSTED beyond max_watches and max_tenant_watches.
  absl::StatusOr<std::unique_ptr<SnapshotWatch>> Watch(const SnapshotSpace& space, bool existing,
                                                       absl::AnyInvocable<void()> wake);

  struct TierUsage {
    TierKind kind = TierKind::kDevice;
    std::int64_t capacity = 0;
    std::int64_t used = 0;
    std::int64_t snapshots = 0;
  };
  std::vector<TierUsage> tiers() const;  // fastest first
  SnapshotCounters counters() const;

  struct Flushed {
    std::int64_t written = 0;
    std::int64_t left = 0;  // snapshots that are not on disk; 0 without a disk
  };
  /// Writes to disk what is not there yet, most recently used first, for at most `limit` of real time (and what one
  /// snapshot takes).
  Flushed Flush(absl::Duration limit);

  /// Ends pins, leases and unfinished snapshots whose time is over. A thread of the store does so every second.
  void Expire();

  /// Waits until nothing is left to be done in the background.
  void WaitUntilIdle();

 private:
  explicit SnapshotStore(std::unique_ptr<StoreState> state);

  std::unique_ptr<StoreState> state_;
  std::unique_ptr<TierMovers> movers_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_STORE_H_
