#ifndef GDPCACHE_TESTS_UNIT_CACHE_CATALOG_FIXTURE_H_
#define GDPCACHE_TESTS_UNIT_CACHE_CATALOG_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/cache/catalog.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/heap_backend.h"
#include "tests/support/manual_clock.h"

namespace gdpcache::cache {

inline constexpr std::int64_t kSlots = 16;

inline CacheSpec Spec(std::string name) {
  CacheSpec spec;
  spec.name = std::move(name);
  spec.geometry.layers = 2;
  spec.geometry.slots = kSlots;
  spec.geometry.heads = 2;
  spec.geometry.key_dim = 16;
  spec.geometry.value_dim = 16;
  spec.fingerprint = "model@1";
  return spec;
}

inline const std::int64_t kCharge = Spec("").geometry.memory_charge();

inline CatalogLimits Limits() {
  CatalogLimits limits;
  limits.max_caches = 3;
  limits.max_sessions = 4;
  limits.state_memory_bytes = 10 * kCharge;
  limits.default_session_ttl = absl::Seconds(60);
  limits.max_session_ttl = absl::Hours(1);
  return limits;
}

class CatalogTest : public ::testing::Test {
 protected:
  std::shared_ptr<Session> Open(absl::string_view cache, absl::Duration ttl = absl::ZeroDuration()) {
    absl::StatusOr<std::shared_ptr<Session>> session = catalog_.OpenSession(cache, ttl, "test");
    EXPECT_TRUE(session.ok()) << session.status();
    return *session;
  }

  test::HeapBackend heap_;
  test::FaultInjectingBackend backend_{heap_};
  test::ManualClock clock_;
  Catalog catalog_{backend_, clock_, Limits()};
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_TESTS_UNIT_CACHE_CATALOG_FIXTURE_H_
