#include "server/engine/event_poller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace gdpcache::engine {
namespace {

TEST(EventPoller, LooksAtEverythingUntilItIsOverAndNotAnyMore) {
  std::atomic<int> over = 0;
  std::atomic<int> looks_behind = 0;
  {
    EventPoller poller;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) {
          poller.Watch(
              [&, left = i % 5, is_over = false]() mutable {
                if (is_over) ++looks_behind;
                if (left-- > 0) return false;
                is_over = true;
                ++over;
                return true;
              },
              static_cast<EventPoller::Owner>(i % 3));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(over, 300);
  EXPECT_EQ(looks_behind, 0);
}

TEST(EventPoller, WhatIsNotOverKeepsNobodyElseFromBeingSeen) {
  EventPoller poller;
  std::atomic<bool> first = false;
  std::mutex mutex;
  std::condition_variable changed;
  bool second = false;
  poller.Watch([&] { return first.load(); });
  poller.Watch([&] {
    const std::lock_guard lock(mutex);
    second = true;
    changed.notify_all();
    return true;
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return second; });
  }
  first = true;
  poller.Stop();
}

TEST(EventPoller, WhatIsOverBeforeWhatItsOwnerHadWatchedEarlierIsSeenToo) {
  EventPoller poller;
  constexpr EventPoller::Owner kOwner = 7;
  std::atomic<bool> first = false;
  std::atomic<int> seen = 0;
  poller.Watch([&] { return first.load(); }, kOwner);
  for (int i = 0; i < 3; ++i) {
    poller.Watch(
        [&] {
          first = ++seen == 3;
          return true;
        },
        kOwner);
  }
  poller.Stop();
  EXPECT_EQ(seen, 3);
}

TEST(EventPoller, WhatIsOverMayHaveMoreToBeWatched) {
  EventPoller poller;
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  poller.Watch([&] {
    poller.Watch([&] {
      const std::lock_guard lock(mutex);
      over = true;
      changed.notify_all();
      return true;
    });
    return true;
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return over; });
}

}  // namespace
}  // namespace gdpcache::engine
