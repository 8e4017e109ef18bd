#include "server/engine/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
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
    for (int i = 0; i < 1000; ++i) (*executor)->Submit([&ran](kernels::Stream&) { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(Executor, OneWorkerKeepsTheOrder) {
  test::HeapBackend backend;
  std::vector<int> order;
  {
    auto executor = Executor::Create(backend, 1);
    for (int i = 0; i < 100; ++i) (*executor)->Submit([&order, i](kernels::Stream&) { order.push_back(i); });
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(Executor, RunHereRunsOnThisThreadWithAStreamOfItsOwn) {
  test::HeapBackend backend;
  auto executor = Executor::Create(backend, 1);
  std::thread::id thread;
  const kernels::Stream* inner = nullptr;
  const kernels::Stream* outer = nullptr;
  (*executor)->RunHere([&](kernels::Stream& stream) {
    outer = &stream;
    (*executor)->RunHere([&](kernels::Stream& other) {
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
    (*executor)->RunHere([&, depth](kernels::Stream&) {
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

}  // namespace
}  // namespace gdpcache::engine
