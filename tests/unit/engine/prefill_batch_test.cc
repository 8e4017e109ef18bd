#include "server/engine/prefill_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/reference/random_problem.h"
#include "tests/unit/engine/callers.h"
#include "tests/unit/engine/engine_world.h"

/// Calls that wait at the same time and share a launch.
namespace gdpcache::engine {
namespace {

using testing::Problem;

class PrefillBatchTest : public ::testing::TestWithParam<Memory> {
 protected:
  PrefillBatchTest() : world_({.workers = 1}, GetParam()), cache_(FreeCache(world_)) {}

  void TearDown() override {
    callers_.clear();
    EXPECT_EQ(world_.engine->staging().used(), 0);
    EXPECT_EQ(world_.engine->device_staging().used(), 0);
  }

  /// Callers of different sizes; the second one continues states that a call before it has left.
  static std::vector<Problem> Problems() {
    testing::ProblemSpec tensor = Spec({170, 0, 90});
    tensor.initial = testing::InitialState::kTensor;
    testing::ProblemSpec zero = Spec({300});
    zero.initial = testing::InitialState::kZero;
    zero.decay = false;
    std::vector<Problem> problems;
    for (const testing::ProblemSpec& spec : {Spec({257}), Spec({1, 200, 17}), tensor, zero, Spec({255})}) {
      problems.push_back(testing::RandomProblem(spec, problems.size()));
    }
    return problems;
  }

  void MakeCallers(const std::vector<Problem>& problems) {
    for (const Problem& problem : problems) callers_.push_back(std::make_unique<Caller>(world_, *cache_, problem));
  }

  /// Starts `start`, and the calls that it starts wait.
  void WhileTheWorkerIsBusy(const std::function<void()>& start) {
    EXPECT_EQ(engine::WhileTheWorkerIsBusy(world_, start), absl::OkStatus());
    for (const std::unique_ptr<Caller>& caller : callers_) {
      if (caller->call != nullptr) results_.push_back(caller->Take());
    }
  }

  std::int64_t Launches() const { return world_.backend.calls(Operation::kRunRecurrence); }

  World world_;
  std::shared_ptr<cache::Cache> cache_;
  std::vector<std::unique_ptr<Caller>> callers_;
  std::vector<Result> results_;
};

INSTANTIATE_TEST_SUITE_P(Memories, PrefillBatchTest, ::testing::Values(Memory::kUnified, Memory::kSeparate),
                         [](const auto& memory) { return memory.param == Memory::kUnified ? "Unified" : "Separate"; });

TEST_P(PrefillBatchTest, WaitingCallsShareALaunchAndGetTheBitsThatTheyGetAlone) {
  const std::vector<Problem> problems = Problems();
  World alone({.workers = 1}, GetParam());
  const std::shared_ptr<cache::Cache> other_cache = FreeCache(alone);
  std::vector<std::unique_ptr<Caller>> others;
  MakeCallers(problems);
  for (const Problem& problem : problems) others.push_back(std::make_unique<Caller>(alone, *other_cache, problem));
  const auto request_of = [](const Caller& caller, std::size_t i) {
    PrefillRequest request = caller.Request();
    request.layer = i == 4 ? 1 : 0;
    request.natural_decay = i == 0;
    return request;
  };
  ASSERT_TRUE(callers_[1]->Run(world_, request_of(*callers_[1], 1)).ok());
  ASSERT_TRUE(others[1]->Run(alone, request_of(*others[1], 1)).ok());
  const std::int64_t launches = Launches();
  WhileTheWorkerIsBusy([&] {
    for (std::size_t i = 0; i < callers_.size(); ++i) callers_[i]->Start(world_, request_of(*callers_[i], i));
  });
  EXPECT_EQ(Launches(), launches + 2) << "the one that kept the worker busy, and one for all others";
  for (std::size_t i = 0; i < callers_.size(); ++i) {
    SCOPED_TRACE(i);
    const Result wanted = others[i]->Run(alone, request_of(*others[i], i));
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    ASSERT_TRUE(results_[i].ok()) << results_[i].status();
    EXPECT_EQ(results_[i]->positions, wanted->positions);
    EXPECT_TRUE(callers_[i]->outputs.h.bytes == others[i]->outputs.h.bytes);
    EXPECT_TRUE(callers_[i]->outputs.v_new.bytes == others[i]->outputs.v_new.bytes);
    EXPECT_TRUE(callers_[i]->outputs.final_state.bytes == others[i]->outputs.final_state.bytes);
  }
  for (const std::int64_t layer : {0, 1}) {
    EXPECT_TRUE(StoreState(*cache_, layer).bytes == StoreState(*other_cache, layer).bytes);
  }
}

TEST_P(PrefillBatchTest, WhatIsWrongWithOneIsNoMatterOfTheOthers) {
  MakeCallers(Problems());
  const Slots positions = {5};
  WhileTheWorkerIsBusy([&] {
    for (std::size_t i = 0; i < callers_.size(); ++i) {
      PrefillRequest request = callers_[i]->Request();
      if (i == 0) request.expected_positions = positions;
      callers_[i]->Start(world_, request);
    }
    callers_[3]->call->Cancel(absl::CancelledError("enough"));
  });
  EXPECT_EQ(results_[0].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(results_[3].status().code(), absl::StatusCode::kCancelled);
  for (const std::size_t i : {1, 2, 4}) EXPECT_EQ(results_[i].status(), absl::OkStatus());
  EXPECT_EQ(cache_->slots().Position(0, callers_[0]->slots[0]), 0);
  EXPECT_EQ(cache_->slots().Position(0, callers_[3]->slots[0]), 0);
  EXPECT_EQ(cache_->slots().Position(0, callers_[4]->slots[0]), 255);
}

TEST_P(PrefillBatchTest, ALaunchThatIsRefusedIsTriedForEachAlone) {
  MakeCallers(Problems());
  const std::int64_t launches = Launches();
  world_.backend.FailAfter(Operation::kRunRecurrence, 1, absl::InternalError("injected"));
  WhileTheWorkerIsBusy([&] {
    for (const auto& caller : callers_) caller->Start(world_, caller->Request());
  });
  EXPECT_EQ(Launches(), launches + 2 + static_cast<std::int64_t>(callers_.size()));
  for (const Result& result : results_) EXPECT_EQ(result.status(), absl::OkStatus());
}

TEST_P(PrefillBatchTest, CallsOfOtherShapesAndOtherCachesRunApart) {
  MakeCallers(Problems());
  const std::int64_t launches = Launches();
  const std::shared_ptr<cache::Cache> other_cache = FreeCache(world_);
  callers_.push_back(std::make_unique<Caller>(world_, *other_cache, Problems()[0]));
  WhileTheWorkerIsBusy([&] {
    for (std::size_t i = 0; i < callers_.size(); ++i) {
      PrefillRequest request = callers_[i]->Request();
      if (i == 1) request.chunk_size = 32;
      if (i == 2) request.check_finite = true;  // an outcome of its own before the launch
      callers_[i]->Start(world_, request);
    }
  });
  for (const Result& result : results_) EXPECT_EQ(result.status(), absl::OkStatus());
  EXPECT_EQ(Launches(), launches + 1 + 4) << "0, 3 and 4 together; 1; 2; the other cache's";
}

TEST_P(PrefillBatchTest, ALostDeviceFailsAll) {
  MakeCallers(Problems());
  WhileTheWorkerIsBusy([&] {
    world_.backend.FailAfter(Operation::kSynchronize, 1, absl::UnavailableError("lost"));
    for (const auto& caller : callers_) caller->Start(world_, caller->Request());
  });
  for (const Result& result : results_) EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(PrefillBatchTest, ASmallCallRunsWhereItIsStartedButNotBeforeAnEarlierOneOnItsSlot) {
  MakeCallers({testing::RandomProblem(Spec({1792}), 1), testing::RandomProblem(Spec({1}), 2)});
  Caller& large = *callers_[0];
  Caller& small = *callers_[1];
  small.session = large.session;
  small.slots = large.slots;
  Gate gate;
  std::vector<std::thread::id> threads;
  world_.backend.BeforeEach(Operation::kRunRecurrence, [&] {
    threads.push_back(std::this_thread::get_id());
    gate.Pass();
  });
  large.Start(world_, large.Request());
  gate.WaitUntilReached();
  small.Start(world_, small.Request());
  EXPECT_FALSE(small.outcome->IsSet());
  gate.Open();
  EXPECT_EQ(large.Take().value().positions, Slots{1792});
  EXPECT_EQ(small.Take().value().positions, Slots{1793});
  EXPECT_EQ(small.Run(world_, small.Request()).value().positions, Slots{1794});
  world_.backend.BeforeEach(Operation::kRunRecurrence, nullptr);
  ASSERT_EQ(threads.size(), 3);
  for (const int call : {0, 1}) EXPECT_NE(threads[call], std::this_thread::get_id());
  if (GetParam() == Memory::kUnified) {
    EXPECT_EQ(threads[2], std::this_thread::get_id());
  }
}

}  // namespace
}  // namespace gdpcache::engine
