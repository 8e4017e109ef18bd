#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_TIER_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_TIER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/snapshot.h"

namespace gdpcache::cache {

enum class TierKind : std::uint8_t { kDevice, kHost, kDisk };  // fastest first

inline constexpr std::size_t kMaxTiers = static_cast<std::size_t>(TierKind::kDisk) + 1;  // of a store, one of each kind

absl::string_view Name(TierKind kind);  // "device", "host", "disk"

/// One tier's copy of a snapshot. Immutable, thread-safe. Its end gives memory back; what outlives the process stays
/// until Remove. Readers hold copies with parts(), which may so outlive their tier; others do not. It may end while the
/// store's lock is held.
class TierCopy {
 public:
  TierCopy() = default;
  TierCopy(const TierCopy&) = delete;
  TierCopy& operator=(const TierCopy&) = delete;
  virtual ~TierCopy() = default;

  /// The parts by layer where the backend copies from and to, valid as long as this object; empty for a copy that has
  /// to be loaded.
  virtual absl::Span<const SnapshotPart> parts() const = 0;

  /// Reads everything into `destination` (one part per layer, memory that the backend's CopyBytes reaches) and waits.
  /// DATA_LOSS when the stored bytes are not those once stored, UNAVAILABLE when they may be readable another time,
  /// NOT_FOUND where Remove came before. What cannot be loaded is dropped, after every error but UNAVAILABLE. After any
  /// error the destination's content is undefined, and nothing is under way to it.
  virtual absl::Status Load(absl::Span<const SnapshotPart> destination, kernels::Stream& stream) const = 0;

  /// Forgets the snapshot for good; readers that have begun are not disturbed.
  virtual void Remove() noexcept = 0;
};

class MemoryTier;

/// A place that keeps snapshots. Thread-safe. Store, SyncRemovals, TierCopy::Load and TierCopy::Remove may block: the
/// store calls them from threads of its own, without its lock. All others must not.
///
/// A store takes the tier that has no memory() for the disk, whatever its kind: it is the last, there is no other, all
/// snapshots are written to it (see WritePolicy), and one thread does all that changes it.
class Tier {
 public:
  Tier() = default;
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;
  virtual ~Tier() = default;

  virtual TierKind kind() const = 0;
  virtual std::int64_t capacity() const = 0;  // bytes it may use; no snapshot of more, as it is in memory, comes to it
  virtual std::int64_t used() const = 0;      // bytes in copies, what is still being read after its removal included

  /// Makes a copy of `source` (one part per layer, in memory that CopyBytes reaches) and waits. RESOURCE_EXHAUSTED when
  /// it does not fit, and only then: the store drops others for it and tries again. UNAVAILABLE and others when the
  /// tier is in trouble. After any error nothing is left behind or under way.
  virtual absl::StatusOr<std::shared_ptr<TierCopy>> Store(const SnapshotRecord& record,
                                                          absl::Span<const SnapshotPart> source,
                                                          kernels::Stream& stream) = 0;

  /// Makes sure that what was removed by now does not come back after a power failure. UNAVAILABLE when it may, or when
  /// something could not be removed since this was last asked for.
  virtual absl::Status SyncRemovals() { return absl::OkStatus(); }

  /// Itself, where its copies have parts().
  virtual MemoryTier* memory() { return nullptr; }
};

/// A snapshot that a tier kept over the end of the process that stored it.
using RecoveredCallback = std::function<void(SnapshotRecord record, std::shared_ptr<TierCopy> copy)>;

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_TIER_H_
