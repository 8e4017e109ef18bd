#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/cache/catalog.h"
#include "server/cache/memory/region.h"
#include "server/cache/task_thread.h"
#include "tests/support/heap_backend.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/cache/catalog_fixture.h"

/// Where memory of sessions and caches goes when there is a thread for it.
namespace gdpcache::cache {
namespace {

/// A catalog whose thread is busy until it is told otherwise.
class CatalogWithAThreadTest : public ::testing::Test {
 protected:
  CatalogWithAThreadTest() {
    thread_.Run([this] { busy_.get_future().wait(); });
  }
  ~CatalogWithAThreadTest() override { LetThreadGoOn(); }

  void LetThreadGoOn() {
    if (std::exchange(is_busy_, false)) busy_.set_value();
  }

  test::HeapBackend heap_;
  const test::ManualClock clock_;
  TaskThread thread_;
  bool is_busy_ = true;
  std::promise<void> busy_;
  std::optional<Catalog> catalog_{std::in_place, heap_, clock_, Limits(), nullptr, &thread_};
};

TEST_F(CatalogWithAThreadTest, NobodyElseWaitsForMemoryThatGoes) {
  ASSERT_TRUE(catalog_->CreateCache(Spec("a")).ok());
  const std::int64_t allocated = heap_.allocated_bytes();
  std::atomic<bool> deleted = false;
  ASSERT_TRUE(catalog_->DeleteCache("a", /*force=*/false, [&deleted] { deleted = true; }).ok());
  EXPECT_EQ(catalog_->FindCache("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(heap_.allocated_bytes(), allocated);
  EXPECT_EQ(catalog_->state_memory_used(), kCharge);
  EXPECT_FALSE(deleted);
  LetThreadGoOn();
  thread_.Finish();
  EXPECT_TRUE(deleted);
  EXPECT_EQ(heap_.allocated_bytes(), 0);
  EXPECT_EQ(catalog_->state_memory_used(), 0);
}

TEST_F(CatalogWithAThreadTest, ASessionsSlotsAreFreeAtOnceAndItIsClosedWhenItsRegionsHaveBeenLetGoOf) {
  const std::shared_ptr<Cache> cache = catalog_->CreateCache(Spec("a"))->cache;
  std::shared_ptr<Session> session = catalog_->OpenSession("a", absl::ZeroDuration(), "x").value();
  ASSERT_TRUE(cache->slots().Acquire(session->key(), 2).ok());
  std::atomic<bool> is_mapped = true;
  ASSERT_TRUE(session->regions()
                  .Add("r", thread_.EndHere(std::make_shared<Region>(RegionKind::kSystem, nullptr, 1,
                                                                     [&is_mapped] { is_mapped = false; })))
                  .ok());
  std::atomic<bool> closed = false;
  std::atomic<bool> drained = false;
  ASSERT_TRUE(catalog_
                  ->CloseSession(session->id(), kDefaultTenant,
                                 [&] {
                                   EXPECT_FALSE(is_mapped);
                                   closed = true;
                                 })
                  .ok());
  session.reset();
  catalog_->Drain([&drained] { drained = true; });
  EXPECT_EQ(cache->slots().free_count(), kSlots);
  EXPECT_TRUE(is_mapped);
  EXPECT_FALSE(closed || drained);
  LetThreadGoOn();
  thread_.Finish();
  EXPECT_TRUE(closed && drained);
  EXPECT_EQ(catalog_->session_count(), 0);
}

TEST_F(CatalogWithAThreadTest, TheCatalogsEndLosesNothing) {
  ASSERT_TRUE(catalog_->CreateCache(Spec("a")).ok());
  const std::string id = catalog_->OpenSession("a", absl::ZeroDuration(), "x").value()->id();
  std::atomic<bool> closed = false;
  ASSERT_TRUE(catalog_->CloseSession(id, kDefaultTenant, [&closed] { closed = true; }).ok());
  LetThreadGoOn();
  catalog_.reset();
  EXPECT_TRUE(closed);
  thread_.Finish();
  EXPECT_EQ(heap_.allocated_bytes(), 0);
}

}  // namespace
}  // namespace gdpcache::cache
