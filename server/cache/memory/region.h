#ifndef GDPCACHE_SERVER_CACHE_MEMORY_REGION_H_
#define GDPCACHE_SERVER_CACHE_MEMORY_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/memory_sharing.h"
#include "server/cache/memory_budget.h"

namespace gdpcache::cache {

enum class RegionKind : std::uint8_t { kSystem, kCuda, kCudaEvent };

/// What regions may take, all sessions together, or one tenant's. Thread-safe; shared with the regions.
struct RegionBudget {
  /// A part of `the_whole`, which is charged, too.
  RegionBudget(std::int64_t the_bytes, std::int64_t the_count, std::shared_ptr<RegionBudget> the_whole = nullptr)
      : bytes(the_bytes), count(the_count), whole(std::move(the_whole)) {}

  MemoryBudget bytes;                         // of system memory
  MemoryBudget count;                         // regions and events
  const std::shared_ptr<RegionBudget> whole;  // of which this is a tenant's share; nullptr: this is all
};

/// Memory of another process that the server has mapped, or an event of one. Let go of by its destructor. The size
/// never changes, and every byte can be read and written for as long as the region lives, whatever the other process
/// does; but its contents may change at any moment.
class Region {
 public:
  /// `release` undoes the mapping.
  Region(RegionKind kind, void* data, std::uint64_t size, absl::AnyInvocable<void()> release)
      : kind_(kind), data_(data), size_(size), release_(std::move(release)) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  RegionKind kind() const { return kind_; }
  /// Of memory: its first byte, where the host (kSystem) or the device (kCuda) reaches it. Of an event: what
  /// kernels::MemorySharing takes.
  void* data() const { return data_; }
  std::uint64_t size() const { return size_; }

  /// Whether `bytes` bytes from `offset` on lie inside.
  bool Contains(std::uint64_t offset, std::uint64_t bytes) const {
    return kind_ != RegionKind::kCudaEvent && offset <= size_ && bytes <= size_ - offset;
  }
  /// Only where Contains.
  std::byte* At(std::uint64_t offset) const { return static_cast<std::byte*>(data_) + offset; }

  /// `callback` runs when the region has been let go of, on the thread that does it. Not thread-safe; once.
  void OnReleased(absl::AnyInvocable<void()> callback) { on_released_ = std::move(callback); }

 private:
  const RegionKind kind_;
  void* const data_;
  const std::uint64_t size_;
  absl::AnyInvocable<void()> release_;
  absl::AnyInvocable<void()> on_released_;
};

/// INVALID_ARGUMENT saying why unless the descriptor is a memfd that its owner can neither shrink nor keep the server
/// from writing to, in ordinary pages: only such memory stays there, whatever other processes do.
absl::Status CheckMemfd(int descriptor);

/// Maps a part of a memfd that CheckMemfd has found good; the descriptor may be closed afterwards. Pinned where there
/// is a device. The protocol's errors, with its field names.
absl::StatusOr<std::shared_ptr<Region>> MapMemfd(int descriptor, std::uint64_t offset, std::uint64_t size,
                                                 kernels::MemorySharing* sharing, std::shared_ptr<RegionBudget> budget);

absl::StatusOr<std::shared_ptr<Region>> OpenCudaMemory(absl::string_view handle, std::uint64_t offset,
                                                       std::uint64_t size, kernels::MemorySharing& sharing,
                                                       std::shared_ptr<RegionBudget> budget);

absl::StatusOr<std::shared_ptr<Region>> OpenCudaEvent(absl::string_view handle, kernels::MemorySharing& sharing,
                                                      std::shared_ptr<RegionBudget> budget);

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_MEMORY_REGION_H_
