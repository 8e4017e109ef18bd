#include "server/engine/staging_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "server/cache/errors.h"
#include "server/cache/task_thread.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/heap_backend.h"

namespace gdpcache::engine {
namespace {

using test::FaultInjectingBackend;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

TEST(StagingPool, BlocksAreAtMostAQuarterLargerThanAskedFor) {
  EXPECT_EQ(StagingPool::BlockSize(0), 0);
  EXPECT_EQ(StagingPool::BlockSize(1), 4096);
  EXPECT_EQ(StagingPool::BlockSize(4097), 5120);
  EXPECT_EQ(StagingPool::BlockSize(kMiB), kMiB);
  for (std::int64_t size = 4096; size < 200 * kMiB; size = size * 9 / 8 + 1) {
    EXPECT_GE(StagingPool::BlockSize(size), size);
    EXPECT_LE(StagingPool::BlockSize(size), size + size / 4);
    EXPECT_EQ(StagingPool::BlockSize(StagingPool::BlockSize(size)), StagingPool::BlockSize(size));
  }
}

TEST(StagingPool, CountsReservationsAndWhatExceedsThem) {
  test::HeapBackend backend;
  StagingPool pool(backend, kernels::MemoryKind::kHost, 10 * kMiB);
  auto account = pool.Open(2 * kMiB);
  ASSERT_TRUE(account.ok());
  EXPECT_EQ(pool.used(), 2 * kMiB);
  auto first = (*account)->Acquire(kMiB);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->size(), kMiB);
  EXPECT_EQ(pool.used(), 2 * kMiB);
  auto second = (*account)->Acquire(4 * kMiB);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(pool.used(), 5 * kMiB);
  second->Reset();
  EXPECT_EQ(pool.used(), 2 * kMiB);
  (*account)->EndReservation();
  EXPECT_EQ(pool.used(), kMiB);
  account->reset();  // the buffer keeps the account
  EXPECT_EQ(pool.used(), kMiB);
  first->Reset();
  EXPECT_EQ(pool.used(), 0);
}

TEST(StagingPool, RefusesBeyondTheBudgetNamingNeedBudgetAndUse) {
  test::HeapBackend backend;
  StagingPool pool(backend, kernels::MemoryKind::kHost, 10 * kMiB);
  const auto never = pool.Open(11 * kMiB);
  EXPECT_EQ(never.status().message(), "the call needs 11534336 bytes of staging memory; the server has 10485760");
  EXPECT_FALSE(cache::RetryAfterOf(never.status()).has_value());
  const auto account = pool.Open(6 * kMiB);
  ASSERT_TRUE(account.ok());
  const auto later = pool.Open(5 * kMiB);
  EXPECT_EQ(later.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(later.status().message(),
            "the call needs 5242880 more bytes of staging memory; 6291456 of 10485760 are in use");
  EXPECT_TRUE(cache::RetryAfterOf(later.status()).has_value());
  EXPECT_EQ((*account)->Acquire(11 * kMiB).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.used(), 6 * kMiB);
  (*account)->EndReservation();
  EXPECT_EQ(pool.used(), 0) << "what was refused is not in use";
}

TEST(StagingPool, OneTenantUsesNoMoreThanItsShare) {
  test::HeapBackend backend;
  StagingPool pool(backend, kernels::MemoryKind::kHost, 10 * kMiB);
  const auto share = std::make_shared<cache::MemoryBudget>(4 * kMiB);
  const auto never = pool.Open(5 * kMiB, share);
  EXPECT_EQ(never.status().message(), "the call needs 5242880 bytes of staging memory; one tenant may use 4194304");
  EXPECT_FALSE(cache::RetryAfterOf(never.status()).has_value());
  {
    const auto account = pool.Open(3 * kMiB, share);
    ASSERT_TRUE(account.ok());
    const auto later = pool.Open(2 * kMiB, share);
    EXPECT_EQ(later.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(later.status().message(),
              "the call needs 2097152 more bytes of staging memory; the tenant uses 3145728 of the 4194304 that it may "
              "use");
    EXPECT_TRUE(cache::RetryAfterOf(later.status()).has_value());
    EXPECT_EQ((*account)->Acquire(5 * kMiB).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE((*account)->Acquire(4 * kMiB).ok());
    EXPECT_TRUE(pool.Open(6 * kMiB, std::make_shared<cache::MemoryBudget>(8 * kMiB)).ok()) << "another tenant";
    EXPECT_EQ(share->used(), 3 * kMiB);
  }
  EXPECT_EQ(share->used(), 0);
  EXPECT_EQ(pool.used(), 0);
}

TEST(StagingPool, AFailedAllocationTakesNothing) {
  test::HeapBackend heap;
  FaultInjectingBackend backend(heap);
  StagingPool pool(backend, kernels::MemoryKind::kHost, 10 * kMiB);
  const auto account = pool.Open(0);
  backend.FailAfter(FaultInjectingBackend::Operation::kAllocate, 0, absl::ResourceExhaustedError("no memory"));
  const auto buffer = (*account)->Acquire(kMiB);
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(cache::RetryAfterOf(buffer.status()).has_value());
  EXPECT_EQ(pool.used(), 0);
}

TEST(StagingPool, KeepsFreedBlocksForTheNextUser) {
  test::HeapBackend heap;
  FaultInjectingBackend backend(heap);
  StagingPool pool(backend, kernels::MemoryKind::kHost, 100 * kMiB);
  const auto account = pool.Open(kMiB);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE((*account)->Acquire(8 * kMiB).ok());
  EXPECT_EQ(backend.calls(FaultInjectingBackend::Operation::kAllocate), 1);
  EXPECT_EQ(pool.retained(), 8 * kMiB);
}

TEST(StagingPool, KeptBlocksGiveWayToWhoeverNeedsTheBudget) {
  test::HeapBackend backend;
  StagingPool pool(backend, kernels::MemoryKind::kHost, 16 * kMiB);
  const auto account = pool.Open(kMiB);
  ASSERT_TRUE((*account)->Acquire(8 * kMiB).ok());
  EXPECT_EQ(pool.retained(), 8 * kMiB);
  const auto large = (*account)->Acquire(14 * kMiB);
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(pool.retained(), 0);
  EXPECT_LE(backend.allocated_bytes(), 16 * kMiB);
}

TEST(StagingPool, KeepsLittleWhenNobodyUsesIt) {
  test::HeapBackend backend;
  StagingPool pool(backend, kernels::MemoryKind::kHost, std::int64_t{1} << 30);
  {
    const auto account = pool.Open(0);
    std::vector<StagingBuffer> buffers;
    for (int i = 0; i < 20; ++i) buffers.push_back(*(*account)->Acquire(8 * kMiB));
    buffers.resize(1);
    EXPECT_LE(pool.retained(), StagingPool::kRetainedBusy);
    EXPECT_GT(pool.retained(), StagingPool::kRetainedIdle);
  }
  EXPECT_LE(pool.retained(), StagingPool::kRetainedIdle);
  EXPECT_EQ(backend.allocated_bytes(), pool.retained());
}

TEST(StagingPool, WithAThreadWhoeverFreesABlockGivesNothingBackButWhoeverNeedsTheBudgetDoes) {
  test::HeapBackend backend;
  cache::TaskThread thread;
  StagingPool pool(backend, kernels::MemoryKind::kHost, 100 * kMiB, &thread);
  const auto use = [&pool](const std::vector<std::int64_t>& sizes) {
    const auto account = pool.Open(0);
    std::vector<StagingBuffer> buffers;
    for (const std::int64_t size : sizes) buffers.push_back(*(*account)->Acquire(size));
  };
  const auto expect_kept = [&](std::int64_t bytes) {
    EXPECT_EQ(pool.retained(), bytes);
    EXPECT_EQ(backend.allocated_bytes(), bytes);
  };
  std::promise<void> busy;
  thread.Run([&busy] { busy.get_future().wait(); });
  use({24 * kMiB, 20 * kMiB});
  expect_kept(44 * kMiB);
  use({72 * kMiB});
  expect_kept(92 * kMiB);  // the smaller of the two fitted beside it
  busy.set_value();
  thread.Finish();
  expect_kept(20 * kMiB);
  {
    const auto busy_pool = pool.Open(kMiB);
    use({72 * kMiB});
    thread.Finish();
    expect_kept(20 * kMiB);  // blocks as large as the other are not kept
  }
  EXPECT_EQ(pool.used(), 0);
}

TEST(StagingPool, WithAThreadItsEndComesBehindWhatTheThreadHasToDo) {
  test::HeapBackend backend;
  cache::TaskThread thread;
  {
    StagingPool pool(backend, kernels::MemoryKind::kHost, 100 * kMiB, &thread);
    const auto account = pool.Open(0);
    ASSERT_TRUE((*account)->Acquire(72 * kMiB).ok());
  }
  EXPECT_EQ(backend.allocated_bytes(), 0);
}

TEST(StagingPool, ManyThreadsLeaveNothingInUse) {
  test::HeapBackend backend;
  StagingPool pool(backend, kernels::MemoryKind::kHost, 64 * kMiB);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&pool, i] {
      for (std::int64_t round = 0; round < 300; ++round) {
        const auto account = pool.Open(((round + i) % 5) * kMiB);
        if (!account.ok()) continue;
        auto first = (*account)->Acquire(1 + (round * 7919) % (3 * kMiB));
        auto second = (*account)->Acquire(1 + (round * 104729) % (9 * kMiB));
        if (second.ok()) second->data()[0] = std::byte{1};
        if (first.ok()) first->data()[0] = std::byte{1};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(backend.allocated_bytes(), pool.retained());
}

}  // namespace
}  // namespace gdpcache::engine
