#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_ARENA_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace gdpcache::cache {

/// Memory of one kind within a budget, handed out in pieces of any size without asking the backend for each: it is
/// taken in slabs, when needed, and an empty slab is given back only when its share of the budget is needed in another
/// shape. Takes the smallest free piece that is large enough, the lowest of equal ones: snapshots come in few sizes, so
/// most of them fit exactly into what an earlier one left. Thread-safe. Extents must be freed before the arena ends.
class Arena {
 public:
  static constexpr std::int64_t kAlignment = 256;
  static constexpr std::int64_t kSlabBytes = std::int64_t{64} << 20;
  /// A backend that has refused a slab is not asked again before so many more have been wanted: asking in vain is slow.
  static constexpr int kPatience = 32;

  class Slab;
  struct Extent {
    std::byte* data = nullptr;  // aligned to kAlignment; content undefined
    std::int64_t size = 0;      // a multiple of it
    Slab* slab = nullptr;
  };

  /// Slabs have `slab_bytes`, or more where a single extent needs it, or what is left of the budget.
  Arena(kernels::Backend& backend, kernels::MemoryKind kind, std::int64_t budget, std::int64_t slab_bytes = kSlabBytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  /// `count` extents of at least `size` > 0 bytes each, all or nothing. RESOURCE_EXHAUSTED names budget, size and use;
  /// UNAVAILABLE is the backend's.
  absl::StatusOr<std::vector<Extent>> Allocate(std::int64_t size, std::int64_t count);
  void Free(absl::Span<const Extent> extents);

  /// What an extent of `size` takes.
  static constexpr std::int64_t RoundUp(std::int64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

  std::int64_t budget() const { return budget_; }
  std::int64_t used() const;  // in extents
  std::int64_t held() const;  // in slabs, of which there are never more than the budget

 private:
  bool TakeLocked(std::int64_t size, std::int64_t count, std::vector<Extent>& extents);
  void GiveLocked(const Extent& extent);
  void AddPieceLocked(Slab& slab, std::byte* data, std::int64_t size);
  void RemovePieceLocked(Slab& slab, std::map<std::byte*, std::int64_t>::iterator piece);
  /// One more slab, with room for `size`; OUT_OF_RANGE when the budget has none.
  absl::Status Grow(std::int64_t size);
  /// Empty slabs become one with room for `count` of that size, or as many as there is room for.
  absl::Status Regroup(std::int64_t size, std::int64_t count);
  absl::Status AddSlab(std::int64_t slab_bytes);

  kernels::Backend& backend_;
  const kernels::MemoryKind kind_;
  const std::int64_t budget_;
  const std::int64_t slab_bytes_;

  std::mutex grow_mutex_;  // one new slab at a time; taken before mutex_
  int refusals_left_ = 0;  // guarded by grow_mutex_
  mutable std::mutex mutex_;
  std::int64_t used_ = 0;
  std::int64_t held_ = 0;
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::map<std::pair<std::int64_t, std::byte*>, Slab*> free_;  // all free pieces by size, then address
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_ARENA_H_
