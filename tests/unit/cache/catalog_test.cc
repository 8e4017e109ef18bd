#include "server/cache/catalog.h"

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/errors.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/unit/cache/catalog_fixture.h"

namespace gdpcache::cache {
namespace {

using test::FaultInjectingBackend;
using ::testing::HasSubstr;

TEST_F(CatalogTest, CreatingAnEqualCacheAgainSharesIt) {
  const absl::StatusOr<Catalog::Created> first = catalog_.CreateCache(Spec("models/a"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->created);
  const absl::StatusOr<Catalog::Created> second = catalog_.CreateCache(Spec("models/a"));
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(second->created);
  EXPECT_EQ(first->cache, second->cache);
  EXPECT_EQ(catalog_.state_memory_used(), kCharge);
}

TEST_F(CatalogTest, AnotherCacheOfTheNameIsRefusedNamingTheDifference) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  CacheSpec other = Spec("a");
  other.geometry.heads = 4;
  other.fingerprint = "model@2";
  other.ephemeral = true;
  const absl::Status status = catalog_.CreateCache(other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(status.message(),
            "cache 'a' exists and differs: heads is 2, not 4; fingerprint is 'model@1', not 'model@2'; ephemeral is "
            "false, not true");
  EXPECT_EQ(ResourceOf(status)->type, "cache");
  EXPECT_EQ(ResourceOf(status)->name, "a");
}

TEST_F(CatalogTest, NamesAreChecked) {
  for (const std::string& name : {std::string(), std::string(129, 'a'), std::string("a\0b", 3), std::string("a b"),
                                  std::string("a\n"), std::string("\xc3\xa4"), std::string("a\\b")}) {
    const absl::Status status = catalog_.CreateCache(Spec(name)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(FieldViolationOf(status)->field, "name");
    EXPECT_EQ(FieldViolationOf(catalog_.FindCache(name).status())->field, "cache");
    EXPECT_EQ(FieldViolationOf(catalog_.DeleteCache(name, false, [] {}))->field, "name");
    EXPECT_EQ(FieldViolationOf(catalog_.OpenSession(name, absl::ZeroDuration(), "").status())->field, "cache");
  }
  EXPECT_TRUE(catalog_.CreateCache(Spec(std::string(128, 'a'))).ok());
  EXPECT_TRUE(catalog_.CreateCache(Spec("Az09._-/x")).ok());
}

TEST_F(CatalogTest, GeometryAndFingerprintAreChecked) {
  CacheSpec spec = Spec("a");
  spec.geometry.key_dim = 257;
  EXPECT_EQ(FieldViolationOf(catalog_.CreateCache(spec).status())->field, "geometry.key_dim");
  spec = Spec("a");
  spec.fingerprint.assign(1'025, 'f');
  EXPECT_EQ(FieldViolationOf(catalog_.CreateCache(spec).status())->field, "fingerprint");
  EXPECT_EQ(heap_.allocated_bytes(), 0);
}

TEST_F(CatalogTest, MemoryIsCountedUntilTheLastUserHasLetGo) {
  CacheSpec large = Spec("large");
  large.geometry.slots *= 6;
  std::shared_ptr<Cache> user = catalog_.CreateCache(large)->cache;
  EXPECT_EQ(catalog_.state_memory_used(), 6 * kCharge);
  bool deleted = false;
  ASSERT_TRUE(catalog_.DeleteCache("large", false, [&deleted] { deleted = true; }).ok());
  EXPECT_TRUE(catalog_.ListCaches().empty()) << "the name is free at once";
  EXPECT_FALSE(deleted);
  const absl::Status status = catalog_.CreateCache(large).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfterOf(status).has_value());
  user.reset();
  EXPECT_TRUE(deleted);
  EXPECT_EQ(catalog_.state_memory_used(), 0);
  EXPECT_EQ(heap_.allocated_bytes(), 0);
  EXPECT_TRUE(catalog_.CreateCache(large).ok());
}

TEST_F(CatalogTest, ACacheThatCanNeverFitGetsNoHintToTryAgain) {
  CacheSpec spec = Spec("huge");
  spec.geometry.slots = 16'777'216;
  const absl::Status status = catalog_.CreateCache(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(RetryAfterOf(status).has_value());
  EXPECT_EQ(catalog_.state_memory_used(), 0);
}

TEST_F(CatalogTest, AFailedAllocationLeavesNothingBehind) {
  CacheSpec spec = Spec("a");
  spec.geometry.auxiliary_bytes = 8;
  for (const int passed : {0, 1}) {
    backend_.FailAfter(FaultInjectingBackend::Operation::kAllocate, passed, absl::ResourceExhaustedError("none"));
    EXPECT_EQ(catalog_.CreateCache(spec).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(heap_.allocated_bytes(), 0);
    EXPECT_EQ(catalog_.state_memory_used(), 0);
    EXPECT_TRUE(catalog_.ListCaches().empty());
  }
  EXPECT_TRUE(catalog_.CreateCache(spec).ok());
}

TEST_F(CatalogTest, TheNumberOfCachesIsLimited) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(catalog_.CreateCache(Spec(name)).ok());
  EXPECT_EQ(catalog_.CreateCache(Spec("d")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(catalog_.CreateCache(Spec("b")).ok()) << "an existing one needs no room";
}

TEST_F(CatalogTest, OneTenantMayMakeOnlySomeOfTheCaches) {
  CatalogLimits limits = Limits();
  limits.max_tenant_caches = 1;
  Catalog catalog(backend_, clock_, limits);
  ASSERT_TRUE(catalog.CreateCache(Spec("configured")).ok());
  ASSERT_TRUE(catalog.CreateCache(Spec("a"), "one").ok());
  const absl::Status refused = catalog.CreateCache(Spec("b"), "one").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), "the tenant has made 1 cache of those that there are; it may have at most 1");
  EXPECT_TRUE(RetryAfterOf(refused).has_value());
  EXPECT_TRUE(catalog.CreateCache(Spec("configured"), "one").ok()) << "it is there, and shared";
  ASSERT_TRUE(catalog.DeleteCache("a", false, [] {}).ok());
  EXPECT_TRUE(catalog.CreateCache(Spec("b"), "one").ok());
  EXPECT_TRUE(catalog.CreateCache(Spec("c"), "another").ok());
}

TEST_F(CatalogTest, TheCachesOfOneTenantTakeSomeOfTheStateMemory) {
  CatalogLimits limits = Limits();
  limits.max_tenant_calls = 1;
  limits.tenant_state_bytes = 2 * kCharge;
  Catalog catalog(backend_, clock_, limits);
  CacheSpec large = Spec("large");
  large.geometry.slots = 3 * kSlots;
  const absl::Status too_large = catalog.CreateCache(large, "one").status();
  EXPECT_EQ(too_large.message(),
            absl::StrCat("the cache needs ", large.geometry.memory_charge(), " bytes; ", 2 * kCharge,
                         " of the tenant's ", 2 * kCharge, " bytes of state memory are free"));
  EXPECT_FALSE(RetryAfterOf(too_large).has_value()) << "no use to try again";
  ASSERT_TRUE(catalog.CreateCache(Spec("a"), "one").ok());
  const std::shared_ptr<Session> user = *catalog.OpenSession("a", absl::ZeroDuration(), "test", "another");
  CacheSpec two = Spec("two");
  two.geometry.slots = 2 * kSlots;
  const absl::Status refused = catalog.CreateCache(two, "one").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(kCharge, " of the tenant's ", 2 * kCharge)));
  EXPECT_TRUE(RetryAfterOf(refused).has_value());
  EXPECT_EQ(catalog.state_memory_used(), kCharge) << "what was refused takes nothing";
  EXPECT_TRUE(catalog.CreateCache(two, "another").ok());
  EXPECT_TRUE(catalog.DeleteCache("two", false, [] {}).ok());
  EXPECT_TRUE(catalog.CreateCache(two).ok()) << "the server's own";
  ASSERT_TRUE(catalog.DeleteCache("a", true, [] {}).ok());
  EXPECT_TRUE(catalog.DeleteCache("two", false, [] {}).ok());
}

TEST_F(CatalogTest, WhatATenantUsesIsOneForAllItsSessionsAndOutlivesThem) {
  EXPECT_EQ(catalog_.UseOf("one"), nullptr);
  CatalogLimits limits = Limits();
  limits.max_tenant_calls = 5;
  limits.tenant_staging_bytes = 1'000;
  Catalog catalog(backend_, clock_, limits);
  ASSERT_TRUE(catalog.CreateCache(Spec("a")).ok());
  const auto open = [&catalog](const std::string& tenant) {
    return *catalog.OpenSession("a", absl::ZeroDuration(), "test", tenant);
  };
  const std::shared_ptr<Session> first = open("one");
  EXPECT_EQ(first->tenant_use()->calls.limit(), 5);
  EXPECT_EQ(first->tenant_use()->staging.limit(), 1'000);
  EXPECT_EQ(open("one")->tenant_use(), first->tenant_use());
  EXPECT_EQ(catalog.UseOf("one"), first->tenant_use());
  EXPECT_NE(open("another")->tenant_use(), first->tenant_use());
  first->tenant_use()->calls.Take(6);
  catalog.CloseAllSessions([] {});
  EXPECT_EQ(open("one")->tenant_use()->calls.used(), 6);
}

TEST(TenantShare, IsAtLeastOneAndDoesNotOverflow) {
  EXPECT_EQ(TenantShare{}.Of(7), 7);
  EXPECT_EQ(TenantShare{50}.Of(7), 3);
  EXPECT_EQ(TenantShare{1}.Of(7), 1);
  EXPECT_EQ(TenantShare{33}.Of(1'000), 330);
  EXPECT_EQ(TenantShare{50}.Of(std::numeric_limits<std::int64_t>::max()), std::numeric_limits<std::int64_t>::max() / 2);
}

TEST_F(CatalogTest, ListsCachesByNameWithTheirOpenSessions) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("b")).ok());
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  const std::shared_ptr<Session> session = Open("b");
  const std::vector<Catalog::CacheSummary> caches = catalog_.ListCaches();
  ASSERT_EQ(caches.size(), 2u);
  EXPECT_EQ(caches[0].cache->spec().name, "a");
  EXPECT_EQ(caches[0].sessions, 0);
  EXPECT_EQ(caches[1].sessions, 1);
}

TEST_F(CatalogTest, DeletingAnUnknownCacheIsNotFound) {
  bool deleted = false;
  const absl::Status status = catalog_.DeleteCache("a", true, [&deleted] { deleted = true; });
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ResourceOf(status)->name, "a");
  EXPECT_FALSE(deleted);
}

TEST_F(CatalogTest, OpenSessionsKeepACacheUnlessForced) {
  ASSERT_TRUE(catalog_.CreateCache(Spec("a")).ok());
  std::shared_ptr<Session> session = Open("a");
  std::optional<Session::Call> call;
  bool cancelled = false;
  call = session->BeginCall([&cancelled] { cancelled = true; }).value();
  bool deleted = false;
  const auto on_deleted = [&deleted] { deleted = true; };
  const absl::Status status = catalog_.DeleteCache("a", false, on_deleted);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 1 open session; close"));

  ASSERT_TRUE(catalog_.DeleteCache("a", true, on_deleted).ok());
  EXPECT_TRUE(cancelled);
  EXPECT_EQ(catalog_.FindSession(session->id(), kDefaultTenant).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(catalog_.FindCache("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(catalog_.CreateCache(Spec("a")).ok()) << "the name is free";
  session.reset();
  EXPECT_FALSE(deleted) << "a call is still running";
  call.reset();
  EXPECT_TRUE(deleted);
  EXPECT_EQ(catalog_.ListCaches().at(0).sessions, 0);
  EXPECT_EQ(catalog_.session_count(), 0);
  EXPECT_EQ(catalog_.state_memory_used(), kCharge) << "the new one";
}

TEST_F(CatalogTest, AnEphemeralCacheGoesWithItsLastSession) {
  CacheSpec spec = Spec("tmp");
  spec.ephemeral = true;
  ASSERT_TRUE(catalog_.CreateCache(spec).ok());
  std::shared_ptr<Session> first = Open("tmp");
  std::shared_ptr<Session> second = Open("tmp");
  ASSERT_TRUE(catalog_.CloseSession(first->id(), kDefaultTenant, [] {}).ok());
  EXPECT_TRUE(catalog_.FindCache("tmp").ok());
  ASSERT_TRUE(catalog_.CloseSession(second->id(), kDefaultTenant, [] {}).ok());
  EXPECT_FALSE(catalog_.FindCache("tmp").ok());
  EXPECT_EQ(catalog_.OpenSession("tmp", absl::ZeroDuration(), "").status().code(), absl::StatusCode::kNotFound);
  first.reset();
  second.reset();
  EXPECT_EQ(catalog_.state_memory_used(), 0);
  EXPECT_EQ(heap_.allocated_bytes(), 0);
}

TEST_F(CatalogTest, AnEndingSessionDoesNotTouchANewCacheOfTheOldName) {
  CacheSpec spec = Spec("tmp");
  spec.ephemeral = true;
  ASSERT_TRUE(catalog_.CreateCache(spec).ok());
  const std::shared_ptr<Session> old = Open("tmp");
  Session::Call call = old->BeginCall([] {}).value();
  ASSERT_TRUE(catalog_.DeleteCache("tmp", true, [] {}).ok());
  ASSERT_TRUE(catalog_.CreateCache(spec).ok());
  const std::shared_ptr<Session> current = Open("tmp");
  call.End();
  EXPECT_TRUE(catalog_.FindSession(current->id(), kDefaultTenant).ok());
  EXPECT_EQ(catalog_.ListCaches().at(0).sessions, 1);
}

}  // namespace
}  // namespace gdpcache::cache
