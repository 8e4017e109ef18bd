#include "tests/unit/engine/test_tiers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/engine/slot_memory.h"

namespace gdpcache::engine {
namespace {

using Blobs = std::vector<std::vector<std::byte>>;

std::vector<kernels::ByteRange> RangesOf(const Blobs& blobs) {
  std::vector<kernels::ByteRange> ranges;
  ranges.reserve(blobs.size());
  for (const std::vector<std::byte>& blob : blobs) {
    ranges.push_back({const_cast<std::byte*>(blob.data()), blob.size()});
  }
  return ranges;
}

absl::Status Copy(kernels::Backend& backend, absl::Span<const kernels::ByteRange> to,
                  absl::Span<const kernels::ByteRange> from, kernels::Stream& stream) {
  std::vector<kernels::ByteCopy> copies;
  AppendCopies(to, from, copies);
  absl::Status status = backend.CopyBytes(copies, stream);
  if (status.ok()) status = backend.Synchronize(stream);
  return status;
}

class SlowCopy final : public cache::TierCopy {
 public:
  SlowCopy(kernels::Backend& backend, const std::function<absl::Status()>& before_load, Blobs blobs,
           std::shared_ptr<std::atomic<std::int64_t>> used)
      : backend_(backend), before_load_(before_load), blobs_(std::move(blobs)), used_(std::move(used)) {
    for (const auto& blob : blobs_) *used_ += static_cast<std::int64_t>(blob.size());
  }
  ~SlowCopy() override {
    for (const auto& blob : blobs_) *used_ -= static_cast<std::int64_t>(blob.size());
  }

  absl::Span<const cache::SnapshotPart> parts() const override { return {}; }
  absl::Status Load(absl::Span<const cache::SnapshotPart> destination, kernels::Stream& stream) const override {
    if (absl::Status status = before_load_(); !status.ok()) return status;
    return Copy(backend_, SnapshotRanges(destination), RangesOf(blobs_), stream);
  }
  void Remove() noexcept override {}

 private:
  kernels::Backend& backend_;
  const std::function<absl::Status()> before_load_;
  const Blobs blobs_;
  const std::shared_ptr<std::atomic<std::int64_t>> used_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<cache::TierCopy>> SlowTier::Store(const cache::SnapshotRecord& /*record*/,
                                                                 absl::Span<const cache::SnapshotPart> source,
                                                                 kernels::Stream& stream) {
  const std::vector<kernels::ByteRange> from = SnapshotRanges(source);
  Blobs blobs;
  for (const kernels::ByteRange& range : from) blobs.emplace_back(range.size);
  if (absl::Status status = Copy(backend_, RangesOf(blobs), from, stream); !status.ok()) return status;
  return std::make_shared<SlowCopy>(backend_, before_load_, std::move(blobs), used_);
}

Tiers TiersDownTo(cache::TierKind kind, std::function<absl::Status()> before_load) {
  return [kind, before_load = std::move(before_load)](kernels::Backend& backend) {
    constexpr std::int64_t kBytes = std::int64_t{1} << 30;
    std::vector<cache::StoreTier> tiers;
    for (const cache::TierKind memory : {cache::TierKind::kDevice, cache::TierKind::kHost}) {
      if (memory > kind) continue;
      const std::int64_t watermark = memory == kind ? kBytes : 0;
      tiers.push_back({std::make_unique<cache::MemoryTier>(backend, memory, kBytes), watermark, watermark});
    }
    if (kind == cache::TierKind::kDisk) {
      auto tier = std::make_unique<SlowTier>(backend, before_load);
      const std::int64_t capacity = tier->capacity();
      tiers.push_back({std::move(tier), capacity, capacity});
    }
    return tiers;
  };
}

void WaitUntilAllIn(const World& world, const std::shared_ptr<cache::Session>& session, cache::TierKind kind) {
  const auto all_in = [&world, kind] {
    const std::vector<cache::SnapshotStore::TierUsage> tiers = world.store->tiers();
    return std::all_of(tiers.begin(), tiers.end(), [kind](const cache::SnapshotStore::TierUsage& usage) {
      return usage.kind == kind ? usage.snapshots > 0 : usage.snapshots == 0;
    });
  };
  // One that two threads of the store were busy with stays where it is until there is cause to move something again.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    world.store->WaitUntilIdle();
    if (all_in()) return;
    EXPECT_TRUE(Save(world, session, {{0, KeyOf(absl::StrCat("filler ", attempt))}}).ok());
  }
  ADD_FAILURE() << "the snapshots do not move to the " << cache::Name(kind) << " tier";
}

}  // namespace gdpcache::engine
