#include "server/cache/snapshots/memory_tier.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/copy_and_wait.h"

namespace gdpcache::cache {
namespace {

absl::Status CopyParts(kernels::Backend& backend, absl::Span<const SnapshotPart> source,
                       absl::Span<const SnapshotPart> destination, kernels::Stream& stream) {
  std::vector<kernels::ByteCopy> copies;
  copies.reserve(2 * source.size());
  const auto add = [&](const kernels::ByteRange& to, const kernels::ByteRange& from) {
    if (from.size > 0) copies.push_back({to.data, from.data, from.size});
  };
  for (std::size_t layer = 0; layer < source.size(); ++layer) {
    add(destination[layer].state, source[layer].state);
    add(destination[layer].auxiliary, source[layer].auxiliary);
  }
  return kernels::CopyAndWait(backend, copies, stream);
}

class MemoryCopy final : public TierCopy {
 public:
  MemoryCopy(kernels::Backend& backend, SnapshotMemory memory) : backend_(backend), memory_(std::move(memory)) {}

  absl::Span<const SnapshotPart> parts() const override { return memory_.parts(); }
  absl::Status Load(absl::Span<const SnapshotPart> destination, kernels::Stream& stream) const override {
    return CopyParts(backend_, memory_.parts(), destination, stream);
  }
  void Remove() noexcept override {}  // goes with its last reader

 private:
  kernels::Backend& backend_;
  const SnapshotMemory memory_;
};

}  // namespace

SnapshotMemory::SnapshotMemory(std::shared_ptr<Arena> arena, std::vector<Arena::Extent> extents,
                               std::vector<SnapshotPart> parts)
    : arena_(std::move(arena)), extents_(std::move(extents)), parts_(std::move(parts)) {}

SnapshotMemory& SnapshotMemory::operator=(SnapshotMemory&& other) noexcept {
  if (this != &other) {
    Free();
    arena_ = std::move(other.arena_);
    extents_ = std::exchange(other.extents_, {});
    parts_ = std::exchange(other.parts_, {});
  }
  return *this;
}

void SnapshotMemory::Free() {
  if (arena_ != nullptr) arena_->Free(extents_);
}

void SnapshotMemory::Append(SnapshotMemory other) {
  if (arena_ == nullptr) arena_ = other.arena_;
  extents_.insert(extents_.end(), other.extents_.begin(), other.extents_.end());
  parts_.insert(parts_.end(), other.parts_.begin(), other.parts_.end());
  other.arena_ = nullptr;
}

MemoryTier::MemoryTier(kernels::Backend& backend, TierKind kind, std::int64_t budget, std::int64_t slab_bytes)
    : backend_(backend),
      kind_(kind),
      arena_(std::make_shared<Arena>(
          backend, kind == TierKind::kDevice ? kernels::MemoryKind::kDevice : kernels::MemoryKind::kHost, budget,
          slab_bytes)) {}

std::int64_t MemoryTier::Footprint(const SnapshotSpace& space, std::int64_t count) {
  return count * (Arena::RoundUp(space.state_bytes()) + Arena::RoundUp(space.auxiliary_bytes));
}

absl::StatusOr<SnapshotMemory> MemoryTier::Allocate(const SnapshotSpace& space, std::int64_t count) {
  const std::int64_t auxiliary_at = Arena::RoundUp(space.state_bytes());
  absl::StatusOr<std::vector<Arena::Extent>> extents = arena_->Allocate(auxiliary_at + space.auxiliary_bytes, count);
  if (!extents.ok()) {
    return absl::Status(extents.status().code(),
                        absl::StrCat("the ", Name(kind_), " tier: ", extents.status().message()));
  }
  std::vector<SnapshotPart> parts;
  parts.reserve(extents->size());
  for (const Arena::Extent& extent : *extents) {
    SnapshotPart& part = parts.emplace_back();
    part.state = {extent.data, static_cast<std::size_t>(space.state_bytes())};
    if (space.auxiliary_bytes > 0) {
      part.auxiliary = {extent.data + auxiliary_at, static_cast<std::size_t>(space.auxiliary_bytes)};
    }
  }
  return SnapshotMemory(arena_, *std::move(extents), std::move(parts));
}

std::shared_ptr<TierCopy> MemoryTier::Adopt(SnapshotMemory memory) {
  return std::make_shared<MemoryCopy>(backend_, std::move(memory));
}

absl::StatusOr<std::shared_ptr<TierCopy>> MemoryTier::Store(const SnapshotRecord& record,
                                                            absl::Span<const SnapshotPart> source,
                                                            kernels::Stream& stream) {
  absl::StatusOr<SnapshotMemory> memory = Allocate(record.space, static_cast<std::int64_t>(source.size()));
  if (!memory.ok()) return memory.status();
  if (absl::Status status = CopyParts(backend_, source, memory->parts(), stream); !status.ok()) return status;
  return Adopt(*std::move(memory));
}

}  // namespace gdpcache::cache
