#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_MEMORY_TIER_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_MEMORY_TIER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/arena.h"
#include "server/cache/snapshots/snapshot.h"
#include "server/cache/snapshots/tier.h"

namespace gdpcache::cache {

/// Room for some layers' parts; given back with this. Movable.
class SnapshotMemory {
 public:
  SnapshotMemory() = default;
  SnapshotMemory(SnapshotMemory&& other) noexcept = default;
  SnapshotMemory& operator=(SnapshotMemory&& other) noexcept;
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;
  ~SnapshotMemory() { Free(); }

  absl::Span<const SnapshotPart> parts() const { return parts_; }

  /// Takes over the parts of another memory of the same tier, behind its own.
  void Append(SnapshotMemory other);

 private:
  friend class MemoryTier;
  SnapshotMemory(std::shared_ptr<Arena> arena, std::vector<Arena::Extent> extents, std::vector<SnapshotPart> parts);
  void Free();

  std::shared_ptr<Arena> arena_;  // lives as long as somebody reads from it, also without its tier
  std::vector<Arena::Extent> extents_;
  std::vector<SnapshotPart> parts_;
};

/// Snapshots in memory of one kind. Each layer's part is one extent of an arena: its state, then its auxiliary bytes.
class MemoryTier final : public Tier {
 public:
  /// kDevice or kHost with a budget in bytes.
  MemoryTier(kernels::Backend& backend, TierKind kind, std::int64_t budget,
             std::int64_t slab_bytes = Arena::kSlabBytes);

  TierKind kind() const override { return kind_; }
  std::int64_t capacity() const override { return arena_->budget(); }
  std::int64_t used() const override { return arena_->used(); }
  absl::StatusOr<std::shared_ptr<TierCopy>> Store(const SnapshotRecord& record, absl::Span<const SnapshotPart> source,
                                                  kernels::Stream& stream) override;
  MemoryTier* memory() override { return this; }

  /// What `count` parts take of a tier's budget.
  static std::int64_t Footprint(const SnapshotSpace& space, std::int64_t count);

  /// Room for `count` parts, at once or RESOURCE_EXHAUSTED.
  absl::StatusOr<SnapshotMemory> Allocate(const SnapshotSpace& space, std::int64_t count);

  /// What has been written into memory of this tier, as a copy.
  std::shared_ptr<TierCopy> Adopt(SnapshotMemory memory);

 private:
  kernels::Backend& backend_;
  const TierKind kind_;
  const std::shared_ptr<Arena> arena_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_MEMORY_TIER_H_
