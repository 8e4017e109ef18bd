#ifndef GDPCACHE_TESTS_UNIT_ENGINE_CALLERS_H_
#define GDPCACHE_TESTS_UNIT_ENGINE_CALLERS_H_

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/reference/random_problem.h"
#include "tests/unit/engine/engine_world.h"

/// Several callers of one cache, whose calls wait at the same time and may share a launch.
namespace gdpcache::engine {

using Result = absl::StatusOr<PrefillResult>;

/// Holds the backend's first launch up until it is opened.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    if (passed_++ > 0) return;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void WaitUntilReached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return passed_ > 0; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int passed_ = 0;
  bool open_ = false;
};

/// Large enough to go to a worker that is busy, small enough to be merged.
inline testing::ProblemSpec Spec(std::vector<std::int64_t> lengths) {
  testing::ProblemSpec spec;
  spec.shape = {.heads = 4,
                .key_dim = 32,
                .value_dim = 24,
                .num_householder = 1,
                .chunk_size = 16,
                .input_dtype = kernels::DataType::kBFloat16};
  spec.lengths = std::move(lengths);
  return spec;
}

inline constexpr cache::Geometry kGeometry = {.layers = 2, .slots = 64, .heads = 4, .key_dim = 32, .value_dim = 24};

/// A cache whose slots nobody holds.
inline std::shared_ptr<cache::Cache> FreeCache(World& world) {
  const std::shared_ptr<cache::Session> session = world.OpenSession(kGeometry);
  EXPECT_EQ(world.catalog.CloseSession(session->id(), cache::kDefaultTenant, [] {}), absl::OkStatus());
  return session->cache();
}

/// One caller: a session of the shared cache with slots of its own, a problem, and where its results go.
struct Caller {
  Caller(World& world, const cache::Cache& cache, testing::Problem the_problem)
      : session(world.OpenSessionOn(cache)), problem(std::move(the_problem)) {
    const absl::StatusOr<Slots> acquired = Acquire(world, session, problem.sequences());
    EXPECT_TRUE(acquired.ok()) << acquired.status();
    slots = acquired.value_or(Slots());
  }

  PrefillRequest Request() const {
    PrefillRequest request = RequestOf(problem, TensorTransport::kInline);
    request.state_indices = slots;
    return request;
  }

  void Start(World& world, const PrefillRequest& request) {
    auto made = world.engine->Prefill({.session = session}, request,
                                      [this](Result result) { outcome->Set(std::move(result)); });
    if (!made.ok()) return outcome->Set(made.status());
    call = *made;
    call->SetOutputs(OutputsOf(problem, call->plan(), outputs));
    call->Start();
  }

  /// Runs the request by itself.
  Result Run(World& world, const PrefillRequest& request) {
    Start(world, request);
    return Take();
  }

  Result Take() {
    Result result = outcome->Take();
    outcome = std::make_unique<Outcome<Result>>();
    return result;
  }

  std::shared_ptr<cache::Session> session;
  testing::Problem problem;
  Slots slots;
  testing::Outputs outputs;
  std::unique_ptr<Outcome<Result>> outcome = std::make_unique<Outcome<Result>>();
  std::shared_ptr<UnaryPrefill> call;
};

/// Runs `start` while a launch of another cache's call is held up, so that the calls that it starts have to wait, and
/// returns what becomes of that call.
inline absl::Status WhileTheWorkerIsBusy(World& world, const std::function<void()>& start) {
  const std::shared_ptr<cache::Session> other = world.OpenSession(kGeometry);
  Gate gate;
  world.backend.BeforeEach(Operation::kRunRecurrence, [&gate] { gate.Pass(); });
  const testing::Problem problem = testing::RandomProblem(Spec({1792}), 99);  // too large to run where it is started
  PrefillRequest request = RequestOf(problem, TensorTransport::kInline);
  const Slots slot = {0};
  request.state_indices = slot;
  Outcome<Result> outcome;
  const auto call =
      world.engine->Prefill({.session = other}, request, [&outcome](Result result) { outcome.Set(std::move(result)); });
  testing::Outputs outputs;
  (*call)->SetOutputs(OutputsOf(problem, (*call)->plan(), outputs));
  (*call)->Start();
  gate.WaitUntilReached();
  world.backend.BeforeEach(Operation::kRunRecurrence, nullptr);  // `start` may want another
  start();
  gate.Open();
  return outcome.Take().status();
}

}  // namespace gdpcache::engine

#endif  // GDPCACHE_TESTS_UNIT_ENGINE_CALLERS_H_
