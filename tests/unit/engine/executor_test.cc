#include "server/engine/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fault_injecting_backend.h"
#include "tests/support/heap_backend.h"
#include "tests/unit/engine/engine_world.h"

namespace gdpcache::engine {
namespace {

TEST(Executor, RunsEverythingSubmittedBeforeItGoes) {
  test::HeapBackend backend;
  std::atomic<int> ran = 0;
  {
    auto executor = Executor::Create(backend, 3);
    ASSERT_TRUE(executor.ok());
    for (int i = 0; i < 1000; ++i) (*executor)->Submit(0, [&ran](kernels::Stream&) { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(Executor, OneWorkerKeepsTheOrder) {
  test::HeapBackend backend;
  std::vector<int> order;
  {
    auto executor = Executor::Create(backend, 1);
    for (int i = 0; i < 100; ++i) (*executor)->Submit(0, [&order, i](kernels::Stream&) { order.push_back(i); });
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(Executor, ATaskForHereRunsOnThisThreadWithAStreamOfItsOwn) {
  test::HeapBackend backend;
  auto executor = Executor::Create(backend, 1);
  std::thread::id thread;
  const kernels::Stream* inner = nullptr;
  const kernels::Stream* outer = nullptr;
  const auto submit = [&](Executor::Task task) { (*executor)->Submit(0, std::move(task), Executor::Here::kAlways); };
  submit([&](kernels::Stream& stream) {
    outer = &stream;
    submit([&](kernels::Stream& other) {
      inner = &other;
      thread = std::this_thread::get_id();
    });
  });
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_NE(inner, outer);
}

TEST(Executor, ATaskForHereGoesToAWorkerWhenTheStreamsAreTaken) {
  test::HeapBackend backend;
  auto executor = Executor::Create(backend, 1);
  const std::thread::id here = std::this_thread::get_id();
  Outcome<std::thread::id> thread;
  std::function<void(int)> nest = [&](int depth) {
    (*executor)->Submit(
        0,
        [&, depth](kernels::Stream&) {
          if (std::this_thread::get_id() == here) nest(depth + 1);
          if (std::this_thread::get_id() != here) thread.Set(std::this_thread::get_id());
        },
        Executor::Here::kAlways);
  };
  nest(0);
  EXPECT_NE(thread.Take(), here);
}

TEST(Executor, FailsWithoutStreams) {
  test::HeapBackend heap;
  test::FaultInjectingBackend backend(heap);
  backend.FailAfter(test::FaultInjectingBackend::Operation::kCreateStream, 17, absl::UnavailableError("no stream"));
  EXPECT_EQ(Executor::Create(backend, 4).status(), absl::UnavailableError("no stream"));
}

/// Where a task that may run here when the executor is idle does run.
std::thread::id WhereWhenIdle(Executor& executor) {
  Outcome<std::thread::id> thread;
  executor.Submit(
      0, [&thread](kernels::Stream&) { thread.Set(std::this_thread::get_id()); }, Executor::Here::kWhenIdle);
  return thread.Take();
}

TEST(Executor, AnIdleExecutorRunsATaskHereABusyOneDoesNot) {
  test::HeapBackend backend;
  std::latch started(1);
  std::latch barrier(1);
  auto executor = Executor::Create(backend, 2);
  EXPECT_EQ(WhereWhenIdle(**executor), std::this_thread::get_id());
  (*executor)->Submit(0, [&](kernels::Stream&) {
    started.count_down();
    barrier.wait();
  });
  started.wait();
  EXPECT_NE(WhereWhenIdle(**executor), std::this_thread::get_id());
  barrier.count_down();
}

TEST(Executor, OneThreadAtATimeRunsATaskHere) {
  test::HeapBackend backend;
  auto executor = Executor::Create(backend, 1);
  std::thread::id inner;
  (*executor)->Submit(
      0, [&](kernels::Stream&) { inner = WhereWhenIdle(**executor); }, Executor::Here::kWhenIdle);
  EXPECT_NE(inner, std::this_thread::get_id());
}

TEST(Executor, WorkersWakeEachOtherWhileMoreWaits) {
  test::HeapBackend backend;
  auto executor = Executor::Create(backend, 4);
  std::latch all_run(4);
  for (int i = 0; i < 4; ++i) {
    (*executor)->Submit(i, [&](kernels::Stream&) { all_run.arrive_and_wait(); });
  }
  all_run.wait();
}

TEST(Executor, OwnersTakeTurns) {
  test::HeapBackend backend;
  std::vector<std::string> order;
  {
    std::latch barrier(1);
    auto executor = Executor::Create(backend, 1);
    (*executor)->Submit(0, [&barrier](kernels::Stream&) { barrier.wait(); });
    const auto submit = [&](Executor::Owner owner, std::string name) {
      (*executor)->Submit(owner, [&order, name](kernels::Stream&) { order.push_back(name); });
    };
    for (const char* name : {"a1", "a2", "a3"}) submit(1, name);
    submit(2, "b1");
    for (const char* name : {"c1", "c2"}) submit(3, name);
    barrier.count_down();
  }
  EXPECT_THAT(order, ::testing::ElementsAre("a1", "b1", "c1", "a2", "c2", "a3"));
}

/// Merges with its like.
class NamedTask final : public MergeableTask {
 public:
  using Hook = std::function<void(const std::string&)>;  // of the names of those done together

  /// `run` is called for the work, `tell` for the outcome.
  NamedTask(
      std::string name, double share, Hook run, Hook tell = [](const std::string&) {})
      : name_(std::move(name)), share_(share), run_(std::move(run)), tell_(std::move(tell)) {}
  bool MergesWith(const MergeableTask& other) const override {
    return dynamic_cast<const NamedTask&>(other).name_[0] == name_[0];
  }
  double share() const override { return share_; }
  absl::AnyInvocable<void()> RunMerged(absl::Span<const std::shared_ptr<MergeableTask>> tasks,
                                       kernels::Stream& /*stream*/) override {
    std::string names;
    for (const auto& task : tasks) names += dynamic_cast<const NamedTask&>(*task).name_ + " ";
    run_(names);
    return [this, names] { tell_(names); };
  }

 private:
  const std::string name_;
  const double share_;
  const Hook run_;
  const Hook tell_;
};

TEST(Executor, ATaskTakesWhatMergesWithItFromEachOwnerInTurnUntilThereIsEnough) {
  test::HeapBackend backend;
  std::vector<std::string> batches;
  {
    std::latch barrier(1);
    auto executor = Executor::Create(backend, 1);
    (*executor)->Submit(0, [&barrier](kernels::Stream&) { barrier.wait(); });
    const auto submit = [&](Executor::Owner owner, std::string name, double share) {
      (*executor)->Submit(
          owner, std::make_shared<NamedTask>(std::move(name), share,
                                             [&batches](const std::string& names) { batches.push_back(names); }));
    };
    for (const char* name : {"x1", "x2", "y3", "x4", "x5"}) submit(1, name, 0.25);
    submit(2, "x6", 0.25);
    submit(3, "x7", 0.25);
    submit(3, "x8", 0.5);
    (*executor)->Submit(4, [&batches](kernels::Stream&) { batches.push_back("other"); });
    barrier.count_down();
  }
  EXPECT_THAT(batches, ::testing::ElementsAre("x1 x6 x7 x2 ", "x8 x4 x5 ", "other", "y3 "));
}

/// Takes all streams that others leave, and then asks for its own.
class LaunchingTask final : public MergeableTask {
 public:
  LaunchingTask(Executor& executor, kernels::Stream& of_other, bool& has_stream)
      : executor_(executor), of_other_(of_other), has_stream_(has_stream) {}
  bool MergesWith(const MergeableTask& /*other*/) const override { return false; }
  double share() const override { return 1; }
  absl::AnyInvocable<void()> RunMerged(absl::Span<const std::shared_ptr<MergeableTask>> /*tasks*/,
                                       kernels::Stream& stream) override {
    std::vector<std::unique_ptr<kernels::Stream>> taken;
    while (auto other = executor_.TakeStream(1, of_other_)) taken.push_back(std::move(other));
    auto own = executor_.TakeStream(1, stream);
    has_stream_ = own != nullptr;
    if (has_stream_) taken.push_back(std::move(own));
    for (auto& one : taken) executor_.GiveBack(std::move(one), 1);
    return [] {};
  }

 private:
  Executor& executor_;
  kernels::Stream& of_other_;
  bool& has_stream_;
};

TEST(Executor, AMergeableTaskForHereIsSureOfAStreamForWorkThatOutlastsIt) {
  test::HeapBackend backend;
  auto executor = Executor::Create(backend, 1);
  const auto of_other = *backend.CreateStream();
  for (int round = 0; round < 2; ++round) {
    bool has_stream = false;
    (*executor)->Submit(0, std::make_shared<LaunchingTask>(**executor, *of_other, has_stream), Executor::Here::kAlways);
    EXPECT_TRUE(has_stream);
  }
  EXPECT_TRUE((*executor)->HasStream());
  EXPECT_EQ((*executor)->running(), 0);
}

TEST(Executor, TwoWorkersDoTasksThatMergeOthersFindCompany) {
  test::HeapBackend backend;
  std::mutex mutex;
  std::vector<std::string> batches;
  std::latch two_run(2);
  std::latch barrier(1);
  {
    auto executor = Executor::Create(backend, 4);
    const auto submit = [&](std::string name, double share) {
      const auto run = [&](const std::string& names) {
        {
          const std::lock_guard lock(mutex);
          batches.push_back(names);
        }
        if (names != "x1 " && names != "x2 ") return;
        two_run.count_down();
        barrier.wait();
      };
      (*executor)->Submit(name.back(), std::make_shared<NamedTask>(name, share, run));
    };
    submit("x1", 1);
    submit("x2", 1);
    two_run.wait();
    for (const char* name : {"x3", "x4", "x5", "y6"}) submit(name, 0.1);
    Outcome<bool> other;  // what does not merge finds a worker
    (*executor)->Submit(9, [&other](kernels::Stream&) { other.Set(true); });
    EXPECT_TRUE(other.Take());
    barrier.count_down();
  }
  ASSERT_EQ(batches.size(), 4);
  EXPECT_THAT(batches, ::testing::IsSupersetOf({"x3 x4 x5 ", "y6 "}));
}

TEST(Executor, TheNextOnesBeginBeforeOutcomesAreTold) {
  test::HeapBackend backend;
  std::latch third_runs(1);
  std::latch two_run(2);
  std::atomic<int> told = 0;
  {
    auto executor = Executor::Create(backend, 3);
    const auto submit = [&](std::string name, NamedTask::Hook run) {
      (*executor)->Submit(name.back(), std::make_shared<NamedTask>(name, 1, std::move(run), [&](const std::string&) {
                            third_runs.wait();
                            ++told;
                          }));
    };
    for (const char* name : {"x1", "x2"}) submit(name, [&](const std::string&) { two_run.arrive_and_wait(); });
    submit("x3", [&](const std::string&) { third_runs.count_down(); });
  }
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace gdpcache::engine
