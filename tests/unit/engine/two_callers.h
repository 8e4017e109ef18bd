#ifndef GDPCACHE_TESTS_UNIT_ENGINE_TWO_CALLERS_H_
#define GDPCACHE_TESTS_UNIT_ENGINE_TWO_CALLERS_H_

#include <cstdint>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "server/cache/memory/region.h"
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

/// The end of a region that the call is the last to use: where it has been.
class LastUse {
 public:
  LastUse(World& world, DeviceCaller& caller) : world_(world), caller_(caller) {
    caller.request().regions.push_back(world.thread.EndHere(std::make_shared<cache::Region>(
        cache::RegionKind::kSystem, nullptr, 0, [this] { end_.Set(std::this_thread::get_id()); })));
  }
  /// When the call has been made.
  void BeginsNow() { caller_.request().regions.pop_back(); }
  bool HasEnded() const { return end_.IsSet(); }
  void ExpectThatItEndsOnTheThreadForIt() {
    std::thread::id thread;
    world_.thread.Run([&thread] { thread = std::this_thread::get_id(); });
    world_.thread.Finish();
    EXPECT_EQ(end_.Take(), thread);
  }

 private:
  World& world_;
  DeviceCaller& caller_;
  Outcome<std::thread::id> end_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_TESTS_UNIT_ENGINE_TWO_CALLERS_H_
