#ifndef GDPCACHE_TESTS_UNIT_ENGINE_TEST_TIERS_H_
#define GDPCACHE_TESTS_UNIT_ENGINE_TEST_TIERS_H_

#include <functional>
#include <memory>

#include "server/cache/session.h"
#include "server/cache/snapshots/tier.h"
#include "tests/support/fault_injecting_tier.h"
#include "tests/unit/engine/engine_world.h"

namespace gdpcache::engine {

/// All tiers down to `kind`, from each of which everything moves into the next at once. `plan_disk` plans what becomes
/// of the disk's operations.
Tiers TiersDownTo(cache::TierKind kind, std::function<void(test::FaultInjectingTier&)> plan_disk = nullptr);

/// Waits until the world's snapshots, of which the session's slot 0 becomes some more, are in that tier and in none
/// above it.
void WaitUntilAllIn(const World& world, const std::shared_ptr<cache::Session>& session, cache::TierKind kind);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_TESTS_UNIT_ENGINE_TEST_TIERS_H_
