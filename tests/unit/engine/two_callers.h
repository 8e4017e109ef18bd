#ifndef GDPCACHE_TESTS_UNIT_ENGINE_TWO_CALLERS_H_
#define GDPCACHE_TESTS_UNIT_ENGINE_TWO_CALLERS_H_

#include <cstdint>
#include <memory>

#include "tests/support/eventually.h"
#include "tests/unit/engine/device_caller.h"
#include "tests/unit/engine/engine_world.h"

namespace gdpcache::engine {

/// On a device with a thread of its own, a session with all slots of a cache, and two calls on one of them.
struct TwoCallers {
  explicit TwoCallers(const EngineOptions& options = {.workers = 1}) : world(options, Memory::kAsynchronous) {
    session = world.OpenSession(
        {.layers = 1, .slots = kSlots, .heads = 2, .key_dim = 16, .value_dim = 8, .auxiliary_bytes = kAuxiliary});
    first = std::make_unique<DeviceCaller>(world, session, OneSequence(100, 1, 1));
    second = std::make_unique<DeviceCaller>(world, session, OneSequence(60, 1, 2));
  }

  cache::Cache& cache() const { return *session->cache(); }
  bool NothingUnderWay() const {
    return test::Eventually(
        [this] { return world.engine->admission().calls() == 0 && world.engine->load().running == 0; });
  }

  static constexpr std::int64_t kSlots = 4;
  static constexpr std::int64_t kAuxiliary = 7;
  World world;
  std::shared_ptr<cache::Session> session;
  std::unique_ptr<DeviceCaller> first;
  std::unique_ptr<DeviceCaller> second;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_TESTS_UNIT_ENGINE_TWO_CALLERS_H_
