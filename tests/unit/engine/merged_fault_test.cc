#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "tests/reference/random_problem.h"
#include "tests/unit/engine/callers.h"
#include "tests/unit/engine/engine_world.h"

/// Every operation of the backend fails once, at each of its turns, while prefills of several callers share a launch,
/// and the device is lost there. Each caller is told of its own call: one that failed has changed nothing, one that did
/// not has its result, and the next calls are served; unless the device is lost, which is reported.
namespace gdpcache::engine {
namespace {

using testing::Problem;

std::vector<Problem> Problems() {
  testing::ProblemSpec tensor = Spec({170, 0, 90});
  tensor.initial = testing::InitialState::kTensor;
  std::vector<Problem> problems;
  for (const testing::ProblemSpec& spec : {Spec({257}), Spec({1, 200, 17}), tensor}) {
    problems.push_back(testing::RandomProblem(spec, problems.size()));
  }
  return problems;
}

/// What a caller's slots hold.
struct Held {
  std::vector<std::byte> states;
  Slots positions;
  bool operator==(const Held&) const = default;
};

/// What a call wrote for its caller.
struct Written {
  std::vector<std::byte> h;
  std::vector<std::byte> v_new;
  bool operator==(const Written&) const = default;
};

/// Callers whose slots hold something already.
struct Scene {
  explicit Scene(Memory memory) : world({.workers = 1}, memory), cache(FreeCache(world)) {
    static const std::vector<Problem>& problems = *new std::vector<Problem>(Problems());
    for (const Problem& problem : problems) callers.push_back(std::make_unique<Caller>(world, *cache, problem));
    testing::HostTensor states = StoreState(*cache, 0);
    std::vector<float> values(states.bytes.size() / sizeof(float));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01F * static_cast<float>(i % 17);
    std::memcpy(states.bytes.data(), values.data(), states.bytes.size());
    LoadState(*cache, 0, states);
    for (std::size_t i = 0; i < callers.size(); ++i) {
      for (const std::int64_t slot : callers[i]->slots) cache->slots().SetPosition(0, slot, 7);
      before.push_back(HeldBy(i));
    }
  }

  PrefillRequest RequestBy(std::size_t i) const {
    PrefillRequest request = callers[i]->Request();
    request.natural_decay = i == 0;
    return request;
  }

  absl::Status RunAlone(std::size_t i) { return callers[i]->Run(world, RequestBy(i)).status(); }

  /// Runs all in one launch; calls `plan` when nothing of them has been done.
  std::vector<absl::Status> RunTogether(const std::function<void()>& plan) {
    WhileTheWorkerIsBusy(world, [&] {
      plan();
      for (std::size_t i = 0; i < callers.size(); ++i) callers[i]->Start(world, RequestBy(i));
    }).IgnoreError();  // it may be the one that the fault meets
    std::vector<absl::Status> statuses;
    for (const std::unique_ptr<Caller>& caller : callers) statuses.push_back(caller->Take().status());
    return statuses;
  }

  Held HeldBy(std::size_t i) const {
    const testing::HostTensor state = StoreState(*cache, 0);
    const std::size_t bytes = state.bytes.size() / static_cast<std::size_t>(kGeometry.slots);
    Held held;
    for (const std::int64_t slot : callers[i]->slots) {
      const auto begin = state.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(slot) * bytes);
      held.states.insert(held.states.end(), begin, begin + static_cast<std::ptrdiff_t>(bytes));
      held.positions.push_back(cache->slots().Position(0, slot));
    }
    return held;
  }

  Written WrittenFor(std::size_t i) const { return {callers[i]->outputs.h.bytes, callers[i]->outputs.v_new.bytes}; }

  World world;
  std::shared_ptr<cache::Cache> cache;
  std::vector<std::unique_ptr<Caller>> callers;
  std::vector<Held> before;
};

class MergedFault : public ::testing::TestWithParam<Memory> {
 protected:
  MergedFault() {
    Scene scene(GetParam());
    const std::int64_t launches = scene.world.backend.calls(Operation::kRunRecurrence);
    for (const absl::Status& status : scene.RunTogether([] {})) EXPECT_EQ(status, absl::OkStatus());
    EXPECT_EQ(scene.world.backend.calls(Operation::kRunRecurrence), launches + 2)
        << "one for all, behind another call's";
    for (std::size_t i = 0; i < scene.callers.size(); ++i) {
      after_.push_back(scene.HeldBy(i));
      written_.push_back(scene.WrittenFor(i));
      EXPECT_FALSE(after_[i] == scene.before[i]);
    }
  }

  /// Sets the scene, plans the fault at that turn of the operation, and hands what came of it to `check`; until there
  /// is no such turn.
  void AtEachTurn(const std::function<void(test::FaultInjectingBackend&, Operation, int)>& plan,
                  const std::function<void(Scene&, Operation, const std::vector<absl::Status>&)>& check) {
    for (const Operation operation : kAllOperations) {
      for (int turn = 0; turn < 100 && !HasFailure(); ++turn) {
        SCOPED_TRACE(::testing::Message() << "operation " << static_cast<int>(operation) << ", turn " << turn);
        Scene scene(GetParam());
        std::int64_t calls = 0;
        const std::vector<absl::Status> statuses = scene.RunTogether([&] {
          calls = scene.world.backend.calls(operation);
          plan(scene.world.backend, operation, turn);
        });
        if (scene.world.backend.calls(operation) - calls <= turn) {
          for (std::size_t i = 0; i < statuses.size(); ++i) ExpectDone(scene, i, statuses[i]);
          break;
        }
        failed_ += static_cast<std::size_t>(
            std::count_if(statuses.begin(), statuses.end(), [](const absl::Status& status) { return !status.ok(); }));
        EXPECT_TRUE(NothingUnderWay(scene.world));
        check(scene, operation, statuses);
      }
    }
    EXPECT_GT(failed_, 0);
  }

  void ExpectDone(const Scene& scene, std::size_t i, const absl::Status& status) const {
    EXPECT_EQ(status, absl::OkStatus());
    EXPECT_TRUE(scene.HeldBy(i) == after_[i]) << i;
    EXPECT_TRUE(scene.WrittenFor(i) == written_[i]) << i;
  }

  /// One that failed with `code` has changed nothing and is served when it comes again.
  void ExpectUndone(Scene& scene, std::size_t i, const absl::Status& status, absl::StatusCode code) const {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(scene.HeldBy(i) == scene.before[i]) << i;
    ExpectDone(scene, i, scene.RunAlone(i));
  }

 private:
  std::vector<Held> after_;
  std::vector<Written> written_;
  std::size_t failed_ = 0;
};

TEST_P(MergedFault, AnErrorChangesNothingOfAnybodys) {
  for (const absl::Status& error : {absl::ResourceExhaustedError("injected"), absl::InternalError("injected")}) {
    SCOPED_TRACE(error);
    AtEachTurn([&](test::FaultInjectingBackend& backend, Operation operation,
                   int turn) { backend.FailAfter(operation, turn, error); },
               [&](Scene& scene, Operation operation, const std::vector<absl::Status>& statuses) {
                 for (std::size_t i = 0; i < statuses.size(); ++i) {
                   if (statuses[i].ok()) {
                     ExpectDone(scene, i, statuses[i]);
                   } else if (absl::IsUnavailable(statuses[i])) {
                     // Behind work that cannot be taken back. On the CPU there is none.
                     EXPECT_TRUE(GetParam() == Memory::kSeparate || operation == Operation::kSynchronize);
                     EXPECT_GT(scene.world.losses.load(), 0);
                   } else {
                     ExpectUndone(scene, i, statuses[i], error.code());
                   }
                 }
                 EXPECT_TRUE(NothingUnderWay(scene.world));
               });
  }
}

TEST_P(MergedFault, ALossIsToldToAllWhomItMeets) {
  AtEachTurn([](test::FaultInjectingBackend& backend, Operation operation,
                int turn) { backend.FailForEverAfter(operation, turn, absl::UnavailableError("off the bus")); },
             [&](Scene& scene, Operation /*operation*/, const std::vector<absl::Status>& statuses) {
               for (const absl::Status& status : statuses) {
                 EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
               }
               EXPECT_GT(scene.world.losses.load(), 0);
               EXPECT_TRUE(NothingUnderWay(scene.world));
             });
}

TEST_P(MergedFault, WhoseOwnLaunchIsRefusedAlsoAloneFailsAlone) {
  for (std::size_t refused = 0; refused < Problems().size(); ++refused) {
    SCOPED_TRACE(refused);
    Scene scene(GetParam());
    test::FaultInjectingBackend& backend = scene.world.backend;
    const std::vector<absl::Status> statuses = scene.RunTogether([&] {
      backend.FailAfter(Operation::kRunRecurrence, 0, absl::InternalError("together"));
      backend.BeforeEach(Operation::kRunRecurrence, [&] {
        backend.BeforeEach(Operation::kRunRecurrence, nullptr);
        backend.FailAfter(Operation::kRunRecurrence, static_cast<std::int64_t>(refused), absl::InternalError("alone"));
      });
    });
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      if (i == refused) {
        EXPECT_EQ(statuses[i].message(), "alone");
        ExpectUndone(scene, i, statuses[i], absl::StatusCode::kInternal);
      } else {
        ExpectDone(scene, i, statuses[i]);
      }
    }
    EXPECT_EQ(scene.world.losses.load(), 0);
    EXPECT_TRUE(NothingUnderWay(scene.world));
  }
}

INSTANTIATE_TEST_SUITE_P(Memories, MergedFault, ::testing::Values(Memory::kUnified, Memory::kSeparate),
                         [](const auto& memory) { return memory.param == Memory::kUnified ? "Unified" : "Separate"; });

}  // namespace
}  // namespace gdpcache::engine
