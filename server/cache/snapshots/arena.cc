#include "server/cache/snapshots/arena.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"

namespace gdpcache::cache {

class Arena::Slab {
 public:
  // The backend aligns less than the arena does, so `buffer` has kAlignment bytes more than it is used for.
  Slab(kernels::Buffer buffer, std::int64_t usable)
      : memory(std::move(buffer)),
        first(memory.bytes() +
              (kAlignment - static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment)) %
                  kAlignment),
        size(usable) {}

  kernels::Buffer memory;
  std::byte* const first;
  const std::int64_t size;
  std::map<std::byte*, std::int64_t> free;  // its free pieces, no two of them adjacent
};

Arena::Arena(kernels::Backend& backend, kernels::MemoryKind kind, std::int64_t budget, std::int64_t slab_bytes)
    : backend_(backend),
      kind_(kind),
      budget_(budget / kAlignment * kAlignment),
      slab_bytes_(RoundUp(std::max<std::int64_t>(slab_bytes, 1))) {}

Arena::~Arena() { assert(used_ == 0); }

absl::StatusOr<std::vector<Arena::Extent>> Arena::Allocate(std::int64_t size, std::int64_t count) {
  const auto exhausted = [&](std::int64_t used, absl::string_view why) {
    return absl::ResourceExhaustedError(
        absl::StrCat(count, " x ", size, " bytes are needed; ", used, " of ", budget_, " are in use", why));
  };
  // What passes is at most the budget, so nothing below overflows.
  if (size > budget_ || count > budget_ / RoundUp(size)) return exhausted(used(), "");
  const std::int64_t extent_size = RoundUp(size);
  std::vector<Extent> extents;
  extents.reserve(static_cast<std::size_t>(count));
  {
    const std::lock_guard lock(mutex_);
    if (TakeLocked(extent_size, count, extents)) return extents;
    if (used_ + extent_size * count > budget_) return exhausted(used_, "");
  }
  const std::lock_guard grow_lock(grow_mutex_);
  for (bool regrouped = false;;) {
    {
      const std::lock_guard lock(mutex_);
      if (TakeLocked(extent_size, count, extents)) return extents;
    }
    absl::Status status = Grow(extent_size);
    if (absl::IsOutOfRange(status) && !std::exchange(regrouped, true)) status = Regroup(extent_size, count);
    if (absl::IsUnavailable(status)) return status;
    if (!status.ok()) return exhausted(used(), absl::StrCat("; ", status.message()));
  }
}

bool Arena::TakeLocked(std::int64_t size, std::int64_t count, std::vector<Extent>& extents) {
  for (std::int64_t n = 0; n < count; ++n) {
    const auto found = free_.lower_bound({size, nullptr});
    if (found == free_.end()) {
      for (const Extent& extent : extents) GiveLocked(extent);
      extents.clear();
      return false;
    }
    const auto [piece_size, data] = found->first;
    Slab& slab = *found->second;
    RemovePieceLocked(slab, slab.free.find(data));
    if (piece_size > size) AddPieceLocked(slab, data + size, piece_size - size);
    used_ += size;
    extents.push_back({data, size, &slab});
  }
  return true;
}

void Arena::Free(absl::Span<const Extent> extents) {
  const std::lock_guard lock(mutex_);
  for (const Extent& extent : extents) GiveLocked(extent);
}

void Arena::GiveLocked(const Extent& extent) {
  Slab& slab = *extent.slab;
  std::byte* data = extent.data;
  std::int64_t size = extent.size;
  auto next = slab.free.upper_bound(data);
  if (next != slab.free.begin()) {
    const auto previous = std::prev(next);
    assert(previous->first + previous->second <= data);
    if (previous->first + previous->second == data) {
      data = previous->first;
      size += previous->second;
      RemovePieceLocked(slab, previous);
    }
  }
  if (next != slab.free.end() && extent.data + extent.size == next->first) {
    size += next->second;
    RemovePieceLocked(slab, next);
  }
  AddPieceLocked(slab, data, size);
  used_ -= extent.size;
}

void Arena::AddPieceLocked(Slab& slab, std::byte* data, std::int64_t size) {
  slab.free.emplace(data, size);
  free_.emplace(std::pair(size, data), &slab);
}

void Arena::RemovePieceLocked(Slab& slab, std::map<std::byte*, std::int64_t>::iterator piece) {
  free_.erase({piece->second, piece->first});
  slab.free.erase(piece);
}

absl::Status Arena::Grow(std::int64_t size) {
  std::int64_t slab_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const std::int64_t left = budget_ - held_;
    if (left < size) return absl::OutOfRangeError("what is free of them is in smaller pieces");
    slab_bytes = std::max(size, std::min(slab_bytes_, left));
    if (left - slab_bytes < size) slab_bytes = left;  // a slab of the rest would not hold another of these
    held_ += slab_bytes;
  }
  return AddSlab(slab_bytes);
}

absl::Status Arena::Regroup(std::int64_t size, std::int64_t count) {
  std::int64_t slab_bytes = 0;
  {
    std::vector<kernels::Buffer> dropped;  // freed without the lock
    const std::lock_guard lock(mutex_);
    for (auto entry = slabs_.begin(); entry != slabs_.end() && budget_ - held_ < size * count;) {
      Slab& slab = **entry;
      const auto piece = slab.free.begin();
      if (piece == slab.free.end() || piece->second != slab.size) {
        ++entry;
        continue;
      }
      RemovePieceLocked(slab, piece);
      held_ -= slab.size;
      dropped.push_back(std::move(slab.memory));
      entry = slabs_.erase(entry);
    }
    slab_bytes = budget_ - held_;
    if (slab_bytes < size) return absl::OutOfRangeError("what is free of them is in smaller pieces");
    slab_bytes = std::min(slab_bytes, std::max(size * count, slab_bytes_));
    held_ += slab_bytes;
  }
  return AddSlab(slab_bytes);
}

absl::Status Arena::AddSlab(std::int64_t slab_bytes) {
  absl::StatusOr<kernels::Buffer> buffer = absl::ResourceExhaustedError("the backend has just had no memory");
  if (refusals_left_ > 0) {
    --refusals_left_;
  } else {
    buffer = backend_.Allocate(static_cast<std::size_t>(slab_bytes + kAlignment), kind_);
    if (absl::IsResourceExhausted(buffer.status())) refusals_left_ = kPatience;
  }
  const std::lock_guard lock(mutex_);
  if (!buffer.ok()) {
    held_ -= slab_bytes;
    return buffer.status();
  }
  auto slab = std::make_unique<Slab>(*std::move(buffer), slab_bytes);
  AddPieceLocked(*slab, slab->first, slab_bytes);
  slabs_.push_back(std::move(slab));
  return absl::OkStatus();
}

std::int64_t Arena::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

std::int64_t Arena::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace gdpcache::cache
