#include <atomic>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/cache/catalog.h"
#include "server/cache/errors.h"
#include "tests/support/heap_backend.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/cache/catalog_fixture.h"

/// The sessions of a catalog, from their opening to its shutdown.
namespace gdpcache::cache {
namespace {

TEST_F(CatalogTest, SessionIdsAre128BitsAndAllDifferent) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  std::set<std::string> ids;
  for (int n = 0; n < 1'000; ++n) {
    const std::string id = Open("a")->id();
    EXPECT_EQ(id.size(), 32u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    ids.insert(id);
    ASSERT_TRUE(catalog_.CloseSession(id, kDefaultTenant, [] {}).ok());
  }
  EXPECT_EQ(ids.size(), 1'000u);
}

TEST_F(CatalogTest, TimesToLiveAreChecked) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  EXPECT_EQ(Open("a")->ttl(), absl::Seconds(60));
  EXPECT_EQ(Open("a", absl::Milliseconds(100))->ttl(), absl::Milliseconds(100));
  EXPECT_EQ(Open("a", absl::Hours(1))->ttl(), absl::Hours(1));
  for (const absl::Duration ttl :
       {absl::Milliseconds(99), absl::Milliseconds(-1), absl::Hours(1) + absl::Milliseconds(1),
        absl::Milliseconds(std::numeric_limits<std::int64_t>::max()),
        absl::Milliseconds(std::numeric_limits<std::int64_t>::min())}) {
    const absl::Status status = catalog_.OpenSession("a", ttl, "").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << ttl;
    EXPECT_EQ(FieldViolationOf(status)->field, "ttl_ms");
  }
}

TEST_F(CatalogTest, ClientNamesAreChecked) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  for (const std::string& name : {std::string(129, 'c'), std::string("a\0b", 3), std::string("line\nbreak")}) {
    const absl::Status status = catalog_.OpenSession("a", absl::ZeroDuration(), name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(FieldViolationOf(status)->field, "client_name");
  }
  EXPECT_TRUE(catalog_.OpenSession("a", absl::ZeroDuration(), std::string(128, 'c')).ok());
}

TEST_F(CatalogTest, TheNumberOfSessionsIsLimited) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  for (int n = 0; n < 3; ++n) Open("a");
  const std::string last = Open("a")->id();
  const absl::Status status = catalog_.OpenSession("a", absl::ZeroDuration(), "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfterOf(status).has_value());
  ASSERT_TRUE(catalog_.CloseSession(last, kDefaultTenant, [] {}).ok());
  Open("a");
}

TEST_F(CatalogTest, ClosingFreesTheSlotsOnceTheCallsHaveEnded) {
  const std::shared_ptr<Cache> cache = catalog_.CreateCache(Spec("a"))->cache;
  const std::shared_ptr<Session> session = Open("a");
  ASSERT_TRUE(cache->slots().Acquire(session->key(), 5).ok());
  Session::Call call = session->BeginCall([] {}).value();
  bool closed = false;
  ASSERT_TRUE(catalog_
                  .CloseSession(session->id(), kDefaultTenant,
                                [&] {
                                  closed = true;
                                  EXPECT_EQ(cache->slots().free_count(), kSlots);
                                })
                  .ok());
  EXPECT_FALSE(closed);
  EXPECT_EQ(cache->slots().free_count(), kSlots - 5);
  EXPECT_EQ(catalog_.FindHolder(session->key())->client_name, "test") << "its slots are still listed";
  EXPECT_EQ(catalog_.CloseSession(session->id(), kDefaultTenant, [] {}).code(), absl::StatusCode::kNotFound);
  call.End();
  EXPECT_TRUE(closed);
  EXPECT_FALSE(catalog_.FindHolder(session->key()).has_value());
}

TEST_F(CatalogTest, OneTenantMayHaveOnlySomeOfTheSessions) {
  CatalogLimits limits = Limits();
  limits.max_tenant_sessions = 2;
  Catalog catalog(backend_, clock_, limits);
  ASSERT_TRUE(catalog.CreateCache(Spec("a")).ok());
  const auto open = [&catalog](const std::string& tenant) {
    return catalog.OpenSession("a", absl::ZeroDuration(), "test", tenant);
  };
  std::shared_ptr<Session> first = *open("one");
  ASSERT_TRUE(open("one").ok());
  const absl::Status refused = open("one").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), "the tenant has 2 sessions; it may have at most 2");
  EXPECT_TRUE(RetryAfterOf(refused).has_value());
  EXPECT_TRUE(open("another").ok());
  ASSERT_TRUE(catalog.CloseSession(first->id(), "one", [] {}).ok());
  EXPECT_TRUE(open("one").ok());
}

TEST_F(CatalogTest, SlotsAreCountedForAllSessionsOfATenantAndGivenBackWithThem) {
  CatalogLimits limits = Limits();
  limits.max_tenant_slots = 5;
  Catalog catalog(backend_, clock_, limits);
  ASSERT_TRUE(catalog.CreateCache(Spec("a")).ok());
  const auto open = [&catalog](const std::string& tenant) {
    return *catalog.OpenSession("a", absl::ZeroDuration(), "test", tenant);
  };
  const std::shared_ptr<Session> first = open("one");
  const std::shared_ptr<Session> second = open("one");
  EXPECT_TRUE(first->TakeSlots(3).ok());
  EXPECT_TRUE(second->TakeSlots(2).ok());
  const absl::Status refused = second->TakeSlots(1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), "count is 1; the tenant holds 5 of the 5 slots that it may hold");
  EXPECT_TRUE(RetryAfterOf(refused).has_value());
  EXPECT_TRUE(open("another")->TakeSlots(5).ok());
  second->GiveBackSlots(1);
  EXPECT_TRUE(second->TakeSlots(1).ok());
  ASSERT_TRUE(catalog.CloseSession(first->id(), "one", [] {}).ok());
  EXPECT_TRUE(second->TakeSlots(3).ok());
  EXPECT_FALSE(second->TakeSlots(1).ok());
}

TEST_F(CatalogTest, UnknownSessionsAreNotFound) {
  for (const std::string& id : {std::string(), std::string("0123"), std::string(1 << 20, 'x'), std::string("\0", 1)}) {
    const absl::Status status = catalog_.FindSession(id, kDefaultTenant).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(ResourceOf(status)->type, "session");
    EXPECT_EQ(catalog_.CloseSession(id, kDefaultTenant, [] {}).code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(CatalogTest, SessionsExpireByTheClockUnlessRenewed) {
  const std::shared_ptr<Cache> cache = catalog_.CreateCache(Spec("a"))->cache;
  EXPECT_EQ(catalog_.ExpireSessions(), absl::InfiniteFuture());
  const absl::Time start = clock_.Now();
  const std::shared_ptr<Session> idle = Open("a", absl::Seconds(10));
  const std::shared_ptr<Session> busy = Open("a", absl::Seconds(10));
  ASSERT_TRUE(cache->slots().Acquire(idle->key(), 2).ok());
  ASSERT_TRUE(cache->slots().Acquire(busy->key(), 3).ok());
  EXPECT_EQ(catalog_.ExpireSessions(), start + absl::Seconds(10));
  clock_.Advance(absl::Seconds(6));
  ASSERT_TRUE(catalog_.FindSession(busy->id(), kDefaultTenant).ok());
  EXPECT_EQ(catalog_.FindHolder(busy->key())->expires_at, start + absl::Seconds(16));
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(catalog_.ExpireSessions(), start + absl::Seconds(16));
  EXPECT_EQ(catalog_.FindSession(idle->id(), kDefaultTenant).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cache->slots().free_count(), kSlots - 3);
  busy->Renew(clock_.Now());
  EXPECT_EQ(catalog_.ExpireSessions(), start + absl::Seconds(20))
      << "a session may be renewed behind the catalog's back";
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(catalog_.ExpireSessions(), absl::InfiniteFuture());
  EXPECT_EQ(cache->slots().free_count(), kSlots);
  EXPECT_EQ(catalog_.session_count(), 0);
}

TEST_F(CatalogTest, AnExpiredSessionIsNotFoundEvenBeforeAnybodyCollectsIt) {
  const std::shared_ptr<Cache> cache = catalog_.CreateCache(Spec("a"))->cache;
  const std::shared_ptr<Session> session = Open("a", absl::Seconds(10));
  ASSERT_TRUE(cache->slots().Acquire(session->key(), 2).ok());
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(catalog_.FindSession(session->id(), kDefaultTenant).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cache->slots().free_count(), kSlots);
}

TEST_F(CatalogTest, ExpiryCancelsRunningCalls) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  const std::shared_ptr<Session> session = Open("a", absl::Seconds(10));
  bool cancelled = false;
  const Session::Call call = session->BeginCall([&cancelled] { cancelled = true; }).value();
  clock_.Advance(absl::Seconds(10));
  catalog_.ExpireSessions();
  EXPECT_TRUE(cancelled);
}

// Shutdown.

TEST_F(CatalogTest, DrainingRefusesNewWorkAndWaitsForRunningCalls) {
  const std::shared_ptr<Cache> cache = catalog_.CreateCache(Spec("a"))->cache;
  const std::shared_ptr<Session> idle = Open("a");
  const std::shared_ptr<Session> busy = Open("a");
  bool cancelled = false;
  Session::Call call = busy->BeginCall([&cancelled] { cancelled = true; }).value();
  bool drained = false;
  catalog_.Drain([&drained] { drained = true; });
  EXPECT_EQ(catalog_.session_count(), 1);
  EXPECT_FALSE(cancelled);
  EXPECT_EQ(catalog_.FindSession(busy->id(), kDefaultTenant).status().code(), absl::StatusCode::kUnavailable);
  // Also for a call that had found its session just before.
  EXPECT_EQ(busy->BeginCall([] {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(idle->BeginCall([] {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(catalog_.CloseSession(busy->id(), kDefaultTenant, [] {}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(catalog_.OpenSession("a", absl::ZeroDuration(), "").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(catalog_.CreateCache(Spec("b")).status().code(), absl::StatusCode::kUnavailable);
  bool closed = false;
  catalog_.CloseAllSessions([&closed] { closed = true; });
  EXPECT_TRUE(cancelled);
  EXPECT_FALSE(drained || closed);
  call.End();
  EXPECT_TRUE(drained && closed);
  EXPECT_EQ(cache->slots().free_count(), kSlots);
}

TEST_F(CatalogTest, WithoutSessionsShutdownIsImmediate) {
  bool drained = false;
  bool closed = false;
  catalog_.Drain([&drained] { drained = true; });
  catalog_.CloseAllSessions([&closed] { closed = true; });
  EXPECT_TRUE(drained && closed);
}

TEST_F(CatalogTest, CloseAllSessionsEndsOpenOnesToo) {
  const std::shared_ptr<Cache> cache = catalog_.CreateCache(Spec("a"))->cache;
  for (int n = 0; n < 3; ++n) ASSERT_TRUE(cache->slots().Acquire(Open("a")->key(), 2).ok());
  bool closed = false;
  catalog_.CloseAllSessions([&closed] { closed = true; });
  EXPECT_TRUE(closed);
  EXPECT_EQ(cache->slots().free_count(), kSlots);
  EXPECT_EQ(catalog_.session_count(), 0);
}

TEST(CatalogSessionEndTest, IsToldOnceWhenTheLastCallHasEnded) {
  test::HeapBackend heap;
  const test::ManualClock clock;
  std::vector<SessionKey> ended;
  Catalog catalog(heap, clock, Limits(), [&ended](SessionKey session) { ended.push_back(session); });
  ASSERT_TRUE(catalog.CreateCache(Spec("a")).ok());
  const std::shared_ptr<Session> session = catalog.OpenSession("a", absl::ZeroDuration(), "x").value();
  absl::StatusOr<Session::Call> call = session->BeginCall([] {});
  ASSERT_TRUE(call.ok());
  bool closed = false;
  ASSERT_TRUE(catalog.CloseSession(session->id(), kDefaultTenant, [&closed] { closed = true; }).ok());
  EXPECT_TRUE(ended.empty());
  call->End();
  EXPECT_TRUE(closed);
  EXPECT_EQ(ended, std::vector<SessionKey>{session->key()});
}

TEST_F(CatalogTest, ASessionBelongsToATenant) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  EXPECT_EQ(catalog_.OpenSession("a", absl::ZeroDuration(), "x").value()->tenant(), "default");
  EXPECT_EQ(catalog_.OpenSession("a", absl::ZeroDuration(), "x", "acme").value()->tenant(), "acme");
}

TEST_F(CatalogTest, AnotherTenantsSessionCannotBeToldFromNone) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  const std::shared_ptr<Session> session = catalog_.OpenSession("a", absl::Seconds(10), "x", "acme").value();
  const absl::Time expires_at = session->expires_at();
  clock_.Advance(absl::Seconds(1));
  const absl::Status none = catalog_.FindSession(std::string(32, '0'), "other").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(catalog_.FindSession(session->id(), "other").status().message(), none.message());
  EXPECT_EQ(catalog_.FindSession(session->id(), kDefaultTenant).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(session->expires_at(), expires_at) << "nor renewed";
  EXPECT_EQ(catalog_.CloseSession(session->id(), "other", [] {}).message(), none.message());
  EXPECT_EQ(catalog_.FindHolder(session->key())->tenant, "acme");
  EXPECT_TRUE(catalog_.FindSession(session->id(), "acme").ok());
  EXPECT_TRUE(catalog_.CloseSession(session->id(), "acme", [] {}).ok());
}

// Bookkeeping under load: sessions opened, used, closed, abandoned to expiry and cut off in the middle of calls.
TEST(CatalogThreadsTest, TenThousandSessionsLeaveNothingBehind) {
  constexpr int kThreads = 4;
  constexpr int kSessions = 2'500;
  test::HeapBackend heap;
  test::ManualClock clock;
  CatalogLimits limits = Limits();
  limits.max_sessions = 1'000'000;
  std::atomic<int> ended = 0;
  Catalog catalog(heap, clock, limits, [&ended](SessionKey) { ++ended; });
  const std::shared_ptr<Cache> cache = catalog.CreateCache(Spec("shared"))->cache;
  std::atomic<int> closed = 0;
  std::atomic<int> closes = 0;
  std::vector<std::thread> threads;
  for (int n = 0; n < kThreads; ++n) {
    threads.emplace_back([&, n] {
      std::mt19937 random(n);
      for (int round = 0; round < kSessions; ++round) {
        const std::shared_ptr<Session> session = catalog.OpenSession("shared", absl::Seconds(1), "x").value();
        absl::StatusOr<Session::Call> call = session->BeginCall([] {});
        if (call.ok()) {  // else it has expired already
          const auto slots = cache->slots().Acquire(session->key(), 1 + random() % 3);
          if (slots.ok() && random() % 2 == 0) {
            EXPECT_TRUE(cache->slots().BeginRelease(session->key(), *slots, "slots").ok());
            cache->slots().FinishRelease(*slots);
          }
        }
        switch (random() % 3) {
          case 0:  // closed, the call still running
            if (catalog.CloseSession(session->id(), kDefaultTenant, [&closed] { ++closed; }).ok()) ++closes;
            break;
          case 1:  // closed after the call
            if (call.ok()) call->End();
            if (catalog.CloseSession(session->id(), kDefaultTenant, [&closed] { ++closed; }).ok()) ++closes;
            break;
          default:  // killed
            clock.Advance(absl::Milliseconds(100));
            catalog.ExpireSessions();
        }
        const SlotTable::Counts counts = cache->slots().counts();
        EXPECT_GE(counts.free, 0);
        EXPECT_GE(counts.held, 0);
        EXPECT_LE(counts.free + counts.held, kSlots);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(catalog.ExpireSessions(), absl::InfiniteFuture());
  EXPECT_EQ(closed, closes);
  EXPECT_EQ(ended, kThreads * kSessions);
  EXPECT_EQ(catalog.session_count(), 0);
  EXPECT_EQ(cache->slots().counts().free, kSlots);
  EXPECT_EQ(cache->slots().counts().held, 0);
}

TEST(CatalogThreadsTest, CachesCreatedAndDeletedConcurrentlyReturnTheirMemory) {
  constexpr int kThreads = 4;
  test::HeapBackend heap;
  test::ManualClock clock;
  CatalogLimits limits = Limits();
  limits.max_sessions = 100;
  Catalog catalog(heap, clock, limits);
  std::atomic<int> deletions = 0;
  std::atomic<int> deleted = 0;
  std::vector<std::thread> threads;
  for (int n = 0; n < kThreads; ++n) {
    threads.emplace_back([&, n] {
      for (int round = 0; round < 300; ++round) {
        CacheSpec spec = Spec(round % 2 == 0 ? "a" : "b");
        spec.ephemeral = round % 4 >= 2;
        const absl::StatusOr<Catalog::Created> created = catalog.CreateCache(spec);
        const auto session = catalog.OpenSession(spec.name, absl::ZeroDuration(), "x");
        if (session.ok() && n % 2 == 0) catalog.CloseSession((*session)->id(), kDefaultTenant, [] {}).IgnoreError();
        if (catalog.DeleteCache(spec.name, true, [&deleted] { ++deleted; }).ok()) ++deletions;
        EXPECT_LE(catalog.state_memory_used(), limits.state_memory_bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const char* name : {"a", "b"}) catalog.DeleteCache(name, true, [] {}).IgnoreError();
  EXPECT_EQ(deleted, deletions);
  EXPECT_EQ(catalog.session_count(), 0);
  EXPECT_EQ(catalog.state_memory_used(), 0);
  EXPECT_EQ(heap.allocated_bytes(), 0);
}

}  // namespace
}  // namespace gdpcache::cache
