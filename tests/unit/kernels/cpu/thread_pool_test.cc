#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gdpcache::kernels::cpu {
namespace {

TEST(ThreadPoolTest, WithoutHelpersTheCallerDoesTheWork) {
  const auto pool = ThreadPool::Create(1);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->threads(), 1);
  std::vector<std::thread::id> workers;
  (*pool)->Run(5, [&] { workers.push_back(std::this_thread::get_id()); });
  EXPECT_EQ(workers, std::vector<std::thread::id>{std::this_thread::get_id()});
}

TEST(ThreadPoolTest, SmallCallsWakeNobody) {
  const auto pool = ThreadPool::Create(4);
  ASSERT_TRUE(pool.ok()) << pool.status();
  for (int round = 0; round < 100; ++round) {
    std::vector<std::thread::id> workers;
    (*pool)->Run(0, [&] { workers.push_back(std::this_thread::get_id()); });
    ASSERT_EQ(workers, std::vector<std::thread::id>{std::this_thread::get_id()});
  }
}

TEST(ThreadPoolTest, HelpersWorkAtTheSameTimeAsTheCaller) {
  const auto pool = ThreadPool::Create(4);
  ASSERT_TRUE(pool.ok()) << pool.status();
  std::mutex mutex;
  std::condition_variable all_here;
  std::set<std::thread::id> workers;
  (*pool)->Run(3, [&] {
    // Nobody leaves before all four have come.
    std::unique_lock<std::mutex> lock(mutex);
    workers.insert(std::this_thread::get_id());
    all_here.notify_all();
    all_here.wait(lock, [&] { return workers.size() == 4; });
  });
  EXPECT_EQ(workers.size(), 4U);
  EXPECT_EQ(workers.count(std::this_thread::get_id()), 1U);
}

TEST(ThreadPoolTest, ACallerThatLeavesSendsAHelperToAnother) {
  const auto pool = ThreadPool::Create(2);
  ASSERT_TRUE(pool.ok()) << pool.status();
  std::mutex mutex;
  std::condition_variable changed;
  bool first_is_here = false;
  int on_second = 0;
  std::thread first([&] {
    (*pool)->Run(0, [&] {
      std::unique_lock<std::mutex> lock(mutex);
      first_is_here = true;
      changed.notify_all();
      changed.wait(lock, [&] { return on_second > 0; });
    });
  });
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return first_is_here; });
  }
  (*pool)->Run(1, [&] {
    std::unique_lock<std::mutex> lock(mutex);
    ++on_second;
    changed.notify_all();
    changed.wait(lock, [&] { return on_second == 2; });
  });
  first.join();
  EXPECT_EQ(on_second, 2);
}

TEST(ThreadPoolTest, CallsFromManyThreadsAllFinish) {
  const auto pool = ThreadPool::Create(3);
  ASSERT_TRUE(pool.ok()) << pool.status();
  std::atomic<int> done = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        std::atomic<int> left = 10;
        std::atomic<int> sum = 0;
        (*pool)->Run(2, [&] {
          while (left.fetch_sub(1) > 0) ++sum;
        });
        if (sum == 10) ++done;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 8 * 200);
}

}  // namespace
}  // namespace gdpcache::kernels::cpu
