#include "server/cache/task_thread.h"

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gdpcache::cache {
namespace {

std::thread::id IdOf(TaskThread& thread) {
  std::thread::id id;
  thread.Run([&id] { id = std::this_thread::get_id(); });
  thread.Finish();
  return id;
}

/// Notes where it ends.
class Ending {
 public:
  explicit Ending(std::optional<std::thread::id>& where) : where_(where) {}
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  ~Ending() {
    EXPECT_FALSE(where_.has_value()) << "twice";
    where_ = std::this_thread::get_id();
  }

 private:
  std::optional<std::thread::id>& where_;
};

TEST(TaskThread, RunsTasksInTheirOrderAndAllBeforeItEnds) {
  constexpr int kTasks = 1000;
  std::vector<int> order;
  {
    TaskThread thread;
    for (int i = 0; i < kTasks; ++i) thread.Run([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), kTasks);
  for (int i = 0; i < kTasks; ++i) EXPECT_EQ(order[i], i);
}

TEST(TaskThread, FinishWaitsForWhatHasBeenGiven) {
  TaskThread thread;
  thread.Finish();
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (int n = 0; n < 3; ++n) {
    threads.emplace_back([&thread, &done] {
      for (int i = 1; i <= 100; ++i) {
        const int before = done;
        thread.Run([&done] { ++done; });
        thread.Finish();
        EXPECT_GT(done, before);
      }
    });
  }
  for (std::thread& one : threads) one.join();
  EXPECT_EQ(done, 300);
}

TEST(TaskThread, AnObjectEndsThereWhoeverLetsGoOfItLast) {
  TaskThread thread;
  std::optional<std::thread::id> where;
  std::promise<void> busy;
  thread.Run([&busy] { busy.get_future().wait(); });
  auto object = thread.EndHere(std::make_shared<Ending>(where));
  auto other = object;
  object.reset();
  other.reset();
  busy.set_value();
  thread.Finish();
  EXPECT_EQ(where, IdOf(thread));
}

TEST(TaskThread, AnObjectThatItsOwnTaskLetsGoOfEndsAtOnce) {
  TaskThread thread;
  std::optional<std::thread::id> where;
  auto object = thread.EndHere(std::make_shared<Ending>(where));
  bool has_ended = false;
  thread.Run([&where, &has_ended, object = std::move(object)]() mutable {
    object.reset();
    has_ended = where.has_value();
  });
  thread.Finish();
  EXPECT_TRUE(has_ended);
}

TEST(TaskThread, AnObjectThatEndsWithTheThreadIsNotForgotten) {
  std::optional<std::thread::id> where;
  {
    TaskThread thread;
    thread.EndHere(std::make_shared<Ending>(where)).reset();
  }
  EXPECT_TRUE(where.has_value());
}

}  // namespace
}  // namespace gdpcache::cache
