#include "tests/unit/engine/test_tiers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/cache/snapshots/snapshot_store.h"

namespace gdpcache::engine {

Tiers TiersDownTo(cache::TierKind kind, std::function<void(test::FaultInjectingTier&)> plan_disk) {
  return [kind, plan_disk = std::move(plan_disk)](kernels::Backend& backend) {
    constexpr std::int64_t kBytes = std::int64_t{1} << 30;
    std::vector<cache::StoreTier> tiers;
    for (const cache::TierKind memory : {cache::TierKind::kDevice, cache::TierKind::kHost}) {
      if (memory > kind) continue;
      const std::int64_t watermark = memory == kind ? kBytes : 0;
      tiers.push_back({std::make_unique<cache::MemoryTier>(backend, memory, kBytes), watermark, watermark});
    }
    if (kind == cache::TierKind::kDisk) {
      auto tier = std::make_unique<test::FaultInjectingTier>(backend, kBytes);
      if (plan_disk) plan_disk(*tier);
      tiers.push_back({std::move(tier), kBytes, kBytes});
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
