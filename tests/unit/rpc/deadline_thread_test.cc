#include "server/rpc/deadline_thread.h"

#include <future>
#include <memory>

#include "gtest/gtest.h"
#include "server/cache/catalog.h"
#include "tests/support/heap_backend.h"

namespace gdpcache::rpc {
namespace {

class DeadlineThreadTest : public ::testing::Test {
 protected:
  DeadlineThreadTest() {
    cache::CacheSpec spec;
    spec.name = "a";
    spec.geometry.layers = spec.geometry.slots = spec.geometry.heads = 1;
    spec.geometry.key_dim = spec.geometry.value_dim = 1;
    EXPECT_TRUE(catalog_.CreateCache(spec).ok());
  }

  static cache::CatalogLimits Limits() {
    cache::CatalogLimits limits;
    limits.max_caches = 1;
    limits.max_sessions = 10;
    limits.state_memory_bytes = 1 << 20;
    limits.default_session_ttl = limits.max_session_ttl = absl::Hours(1);
    return limits;
  }

  test::HeapBackend backend_;
  const cache::RealClock clock_;
  cache::Catalog catalog_{backend_, clock_, Limits()};
};

TEST_F(DeadlineThreadTest, EndsASessionWhenItsLeaseRunsOutThoughAnotherWasDueLater) {
  DeadlineThread expiry(clock_, [this] { return catalog_.ExpireSessions(); });
  const std::shared_ptr<cache::Session> later = catalog_.OpenSession("a", absl::Hours(1), "").value();
  expiry.Expect(later->expires_at());
  const std::shared_ptr<cache::Session> soon = catalog_.OpenSession("a", absl::Milliseconds(100), "").value();
  std::promise<void> ended;
  const cache::Session::Call call = soon->BeginCall([&ended] { ended.set_value(); }).value();
  expiry.Expect(soon->expires_at());
  EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_GE(clock_.Now(), soon->expires_at());
  EXPECT_TRUE(catalog_.FindSession(later->id(), cache::kDefaultTenant).ok());
}

TEST_F(DeadlineThreadTest, ASessionThatWasRenewedLives) {
  DeadlineThread expiry(clock_, [this] { return catalog_.ExpireSessions(); });
  const std::shared_ptr<cache::Session> renewed = catalog_.OpenSession("a", absl::Milliseconds(200), "").value();
  const std::shared_ptr<cache::Session> left = catalog_.OpenSession("a", absl::Milliseconds(200), "").value();
  renewed->Renew(clock_.Now() + absl::Hours(1));
  std::promise<void> ended;
  const cache::Session::Call call = left->BeginCall([&ended] { ended.set_value(); }).value();
  expiry.Expect(left->expires_at());
  EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_TRUE(catalog_.FindSession(renewed->id(), cache::kDefaultTenant).ok());
}

TEST_F(DeadlineThreadTest, StopsWithSessionsDueLater) {
  const std::shared_ptr<cache::Session> session = catalog_.OpenSession("a", absl::Hours(1), "").value();
  {
    DeadlineThread expiry(clock_, [this] { return catalog_.ExpireSessions(); });
    expiry.Expect(session->expires_at());
  }
  EXPECT_TRUE(catalog_.FindSession(session->id(), cache::kDefaultTenant).ok());
}

}  // namespace
}  // namespace gdpcache::rpc
