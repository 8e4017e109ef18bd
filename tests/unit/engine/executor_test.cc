#include "server/engine/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
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

TEST(Executor, RunHereRunsOnThisThreadWithAStreamOfItsOwn) {
  test::HeapBackend backend;
  auto executor = Executor::Create(backend, 1);
  std::thread::id thread;
  const kernels::Stream* inner = nullptr;
  const kernels::Stream* outer = nullptr;
  (*executor)->RunHere(0, [&](kernels::Stream& stream) {
    outer = &stream;
    (*executor)->RunHere(0, [&](kernels::Stream& other) {
      inner = &other;
      thread = std::this_thread::get_id();
    });
  });
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_NE(inner, outer);
}

TEST(Executor, RunHereGoesToAWorkerWhenItsStreamsAreTaken) {
  test::HeapBackend backend;
  auto executor = Executor::Create(backend, 1);
  const std::thread::id here = std::this_thread::get_id();
  Outcome<std::thread::id> thread;
  std::function<void(int)> nest = [&](int depth) {
    (*executor)->RunHere(0, [&, depth](kernels::Stream&) {
      if (std::this_thread::get_id() == here) nest(depth + 1);
      if (std::this_thread::get_id() != here) thread.Set(std::this_thread::get_id());
    });
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

/// Something that tasks wait for.
class Barrier {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

TEST(Executor, OwnersTakeTurns) {
  test::HeapBackend backend;
  std::vector<std::string> order;
  {
    auto executor = Executor::Create(backend, 1);
    Barrier barrier;
    (*executor)->Submit(0, [&barrier](kernels::Stream&) { barrier.Wait(); });
    const auto submit = [&](Executor::Owner owner, std::string name) {
      (*executor)->Submit(owner, [&order, name](kernels::Stream&) { order.push_back(name); });
    };
    for (const char* name : {"a1", "a2", "a3"}) submit(1, name);
    submit(2, "b1");
    for (const char* name : {"c1", "c2"}) submit(3, name);
    barrier.Open();
  }
  EXPECT_THAT(order, ::testing::ElementsAre("a1", "b1", "c1", "a2", "c2", "a3"));
}

/// Merges with its like.
class NamedTask final : public MergeableTask {
 public:
  NamedTask(std::string name, double share, std::vector<std::string>& batches)
      : name_(std::move(name)), share_(share), batches_(batches) {}
  bool MergesWith(const MergeableTask& other) const override {
    return dynamic_cast<const NamedTask&>(other).name_[0] == name_[0];
  }
  double share() const override { return share_; }
  void RunMerged(absl::Span<const std::shared_ptr<MergeableTask>> tasks, kernels::Stream& /*stream*/) override {
    std::string names;
    for (const auto& task : tasks) names += dynamic_cast<const NamedTask&>(*task).name_ + " ";
    batches_.push_back(names);
  }

 private:
  const std::string name_;
  const double share_;
  std::vector<std::string>& batches_;
};

TEST(Executor, ATaskTakesWhatMergesWithItFromEachOwnerInTurnUntilThereIsEnough) {
  test::HeapBackend backend;
  std::vector<std::string> batches;
  {
    auto executor = Executor::Create(backend, 1);
    Barrier barrier;
    (*executor)->Submit(0, [&barrier](kernels::Stream&) { barrier.Wait(); });
    const auto submit = [&](Executor::Owner owner, std::string name, double share) {
      (*executor)->Submit(owner, std::make_shared<NamedTask>(std::move(name), share, batches));
    };
    for (const char* name : {"x1", "x2", "y3", "x4", "x5"}) submit(1, name, 0.25);
    submit(2, "x6", 0.25);
    submit(3, "x7", 0.25);
    submit(3, "x8", 0.5);
    (*executor)->Submit(4, [&batches](kernels::Stream&) { batches.push_back("other"); });
    barrier.Open();
  }
  EXPECT_THAT(batches, ::testing::ElementsAre("x1 x6 x7 x2 ", "x8 x4 x5 ", "other", "y3 "));
}

}  // namespace
}  // namespace gdpcache::engine
