#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/cache/clock.h"
#include "tests/support/eventually.h"
#include "tests/unit/engine/callers.h"
#include "tests/unit/engine/device_caller.h"
#include "tests/unit/engine/engine_world.h"

/// The deadline of each kind of prefill passes at each of its stages: while it waits for whatever it may wait for, and
/// at each operation of the backend, so also at the last one before its commit begins and at the first one after. The
/// engine is told (as it is when a client's time is up: by Cancel), or nobody tells it. Whatever it is, the states, the
/// positions and the snapshots are those from before the call or those from after it, nothing stays behind, and the
/// next call is served.
namespace gdpcache::engine {
namespace {

using testing::Problem;

constexpr EngineOptions kOptions = {.workers = 1, .segment_bytes = std::int64_t{16} << 10};
constexpr std::int64_t kAuxiliary = 7;

absl::Status Passed() { return absl::DeadlineExceededError("told"); }

const Slots& OwnSlots() {
  static const Slots& slots = *new Slots{2, -1, 0};
  return slots;
}
const Slots& CompanysSlots() {
  static const Slots& slots = *new Slots{5, -1, 3};
  return slots;
}

/// A session with a state in each slot that is used.
struct Scene {
  explicit Scene(Memory memory) : world(kOptions, memory) {
    session = world.OpenSession(
        {.layers = 1, .slots = 6, .heads = 2, .key_dim = 16, .value_dim = 8, .auxiliary_bytes = kAuxiliary});
    for (const Slots& slots : {OwnSlots(), CompanysSlots()}) {
      PrefillRequest request = RequestOf(problem, TensorTransport::kInline);
      request.state_indices = slots;
      EXPECT_EQ(RunUnary(world, session, problem, request).status(), absl::OkStatus());
    }
  }

  std::int64_t Position(std::int64_t slot) const { return session->cache()->slots().Position(0, slot); }
  std::int64_t SnapshotBytes() const { return world.store->tiers()[0].used; }
  std::int64_t Launches() const { return world.backend.calls(Operation::kRunRecurrence); }

  /// Calls `at` at the operation before which there are `before` others from now on. Memory does not count: a stream
  /// takes it for what arrives, under the call's own lock.
  void AtOperation(int before, const std::function<void(Operation)>& at) {
    const auto count = std::make_shared<std::atomic<int>>(0);
    for (const Operation operation : kAllOperations) {
      if (operation == Operation::kAllocate) continue;
      world.backend.BeforeEach(operation, [=] {
        if (count->fetch_add(1) == before) at(operation);
      });
    }
  }

  /// Lets everything come to its end, which leaves nothing behind.
  void Settle() {
    for (const Operation operation : kAllOperations) world.backend.BeforeEach(operation, nullptr);
    if (world.device != nullptr) world.device->Resume();
    EXPECT_TRUE(test::Eventually([this] { return world.engine->admission().calls() == 0; }));
    EXPECT_TRUE(NothingUnderWay(world));
  }

  void ExpectToServe() {
    const std::int64_t position = Position(2);
    EXPECT_EQ(RunUnary(world, session, problem, RequestOf(problem, TensorTransport::kInline)).status(),
              absl::OkStatus());
    EXPECT_EQ(Position(2), position + 300);
    EXPECT_TRUE(NothingUnderWay(world));
  }

  const Problem problem = SmallProblem();
  World world;
  std::shared_ptr<cache::Session> session;
};

/// One prefill.
class Attempt {
 public:
  Attempt() = default;
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  virtual ~Attempt() = default;

  virtual Call& call() = 0;
  /// So far as it comes without what it waits for.
  virtual void Start() { call().Start(); }
  /// Lets it have that.
  virtual void GoOn() {}
  /// With all that it could wait for.
  virtual void StartAtOnce() {
    Start();
    GoOn();
  }
  virtual bool IsAnswered() const { return outcome_.IsSet(); }
  virtual Result Take() { return outcome_.Take(); }

 protected:
  PrefillDone Done() {
    return [this](Result result) { outcome_.Set(std::move(result)); };
  }

 private:
  Outcome<Result> outcome_;
};

class UnaryAttempt : public Attempt {
 public:
  UnaryAttempt(Scene& scene, absl::Time deadline, const Slots& slots, bool keeps_snapshots = false) {
    PrefillRequest request = RequestOf(scene.problem, TensorTransport::kInline);
    request.state_indices = slots;
    if (keeps_snapshots) {
      request.check_finite = true;
      request.auxiliary_state = {.present = true,
                                 .dtype = ElementType::kUint8,
                                 .shape = auxiliary_shape_,
                                 .data = auxiliary_.data(),
                                 .data_bytes = static_cast<std::int64_t>(auxiliary_.size())};
      request.snapshots = {{.sequence = 0, .boundary = 3, .key = keys_[0], .auxiliary = "1234567"},
                           {.sequence = 2, .boundary = 38, .key = keys_[1], .auxiliary = "7654321"}};
    }
    auto made = scene.world.engine->Prefill({.session = scene.session, .deadline = deadline}, request, Done());
    EXPECT_TRUE(made.ok()) << made.status();
    call_ = *std::move(made);
    call_->SetOutputs(OutputsOf(scene.problem, call_->plan(), outputs_));
  }
  Call& call() override { return *call_; }

 private:
  const std::vector<std::byte> auxiliary_{3 * kAuxiliary, std::byte{9}};
  const std::vector<std::int64_t> auxiliary_shape_ = {3, kAuxiliary};
  const std::vector<std::string> keys_ = {KeyOf("within"), KeyOf("end")};
  testing::Outputs outputs_;
  std::shared_ptr<UnaryPrefill> call_;
};

/// Waits for the last byte of its last segment.
class StreamedAttempt : public Attempt {
 public:
  StreamedAttempt(Scene& scene, absl::Time deadline) : feeds_(FeedsOf(scene.problem)) {
    auto made = scene.world.engine->PrefillStream({.session = scene.session, .deadline = deadline},
                                                  RequestOf(scene.problem, TensorTransport::kStream), peer_, Done());
    EXPECT_TRUE(made.ok()) << made.status();
    call_ = *std::move(made);
    peer_.SetCall(call_.get());
  }
  Call& call() override { return *call_; }
  void Start() override {
    call_->Start();
    for (Feed& feed : feeds_) {
      if (!Send(*call_, feed, feed.size - (&feed == &feeds_.back() ? 1 : 0)).ok()) return;
    }
  }
  void GoOn() override {
    if (Send(*call_, feeds_.back(), 1).ok()) call_->EndOfInput();
  }

 private:
  std::vector<Feed> feeds_;
  CollectingPeer peer_;
  std::shared_ptr<StreamedPrefill> call_;
};

/// Waits for its ready event.
class DeviceAttempt : public Attempt {
 public:
  DeviceAttempt(Scene& scene, absl::Time deadline, bool is_checked)
      : device_(*scene.world.device),
        caller_(scene.world, scene.session, Sequences({90, 30}, {2, 0}, 1)),
        ready_(device_.MakeEvent(false)) {
    caller_.SetReadyEvent(ready_);
    caller_.SetDeadline(deadline);
    caller_.request().check_finite = is_checked;
    caller_.Make();
  }
  ~DeviceAttempt() override { EXPECT_EQ(caller_.users(), 0); }
  Call& call() override { return caller_.call(); }
  void GoOn() override { device_.Happen(ready_); }
  void StartAtOnce() override {
    GoOn();
    Start();
  }
  bool IsAnswered() const override { return caller_.IsAnswered(); }
  Result Take() override { return caller_.Take(); }

 private:
  test::AsynchronousBackend& device_;
  DeviceCaller caller_;
  void* const ready_;
};

struct Kind {
  std::string name;
  Memory memory;
  Operation commits_with;  // the first one after its commit has begun
  std::function<std::unique_ptr<Attempt>(Scene&, absl::Time)> make;
  bool is_merged = false;     // with another call
  bool comes_behind = false;  // work under way on its slots, where it is launched at once
  bool waits = false;         // Attempt::GoOn lets it go on
};

std::vector<Kind> Kinds() {
  const auto unary = [](Scene& scene, absl::Time deadline) {
    return std::make_unique<UnaryAttempt>(scene, deadline, OwnSlots());
  };
  return {
      {.name = "Unary", .memory = Memory::kSeparate, .commits_with = Operation::kRunRecurrence, .make = unary},
      {.name = "Streamed",
       .memory = Memory::kUnified,
       .commits_with = Operation::kCopyStates,
       .make = [](Scene& scene, absl::Time deadline) { return std::make_unique<StreamedAttempt>(scene, deadline); },
       .waits = true},
      {.name = "Merged",
       .memory = Memory::kSeparate,
       .commits_with = Operation::kRunRecurrence,
       .make = unary,
       .is_merged = true},
      {.name = "WithSnapshots",
       .memory = Memory::kSeparate,
       .commits_with = Operation::kCopyBytes,
       .make =
           [](Scene& scene, absl::Time deadline) {
             return std::make_unique<UnaryAttempt>(scene, deadline, OwnSlots(), /*keeps_snapshots=*/true);
           }},
      {.name = "WithAReadyEvent",
       .memory = Memory::kAsynchronous,
       .commits_with = Operation::kRunRecurrence,
       .make =
           [](Scene& scene, absl::Time deadline) {
             return std::make_unique<DeviceAttempt>(scene, deadline, /*is_checked=*/false);
           },
       .comes_behind = true,
       .waits = true},
      {.name = "CheckedWithAReadyEvent",
       .memory = Memory::kAsynchronous,
       .commits_with = Operation::kRunRecurrence,
       .make =
           [](Scene& scene, absl::Time deadline) {
             return std::make_unique<DeviceAttempt>(scene, deadline, /*is_checked=*/true);
           },
       .waits = true},
  };
}

class DeadlineAtEachStage : public ::testing::TestWithParam<std::size_t> {
 protected:
  struct Left {
    std::size_t fingerprint = 0;
    std::int64_t snapshot_bytes = 0;
    bool operator==(const Left&) const = default;
  };

  const Kind& kind() const { return kinds_[GetParam()]; }

  static Left LeftIn(const Scene& scene) { return {Fingerprint(*scene.session->cache()), scene.SnapshotBytes()}; }

  /// Runs the attempt, if there is one, in its surroundings; `plan` runs before anything of it.
  Result Run(Scene& scene, Attempt* attempt, const std::function<void()>& plan) {
    std::unique_ptr<DeviceCaller> earlier;
    if (kind().is_merged) {
      UnaryAttempt company(scene, absl::InfiniteFuture(), CompanysSlots());
      EXPECT_EQ(WhileTheWorkerIsBusy(scene.world,
                                     [&] {
                                       plan();
                                       company.Start();
                                       if (attempt != nullptr) attempt->Start();
                                     }),
                absl::OkStatus());
      EXPECT_EQ(company.Take().status(), absl::OkStatus());
    } else {
      if (kind().comes_behind) {
        scene.world.device->Hold();
        earlier = std::make_unique<DeviceCaller>(scene.world, scene.session, Sequences({50, 60}, {0, 2}, 2));
        EXPECT_EQ(earlier->Run().status(), absl::OkStatus());
      }
      plan();
      if (attempt != nullptr) {
        attempt->Start();
        attempt->GoOn();
      }
    }
    Result result = absl::NotFoundError("there is no attempt");
    if (attempt != nullptr) result = attempt->Take();
    scene.Settle();
    return result;
  }

  /// What is left by the surroundings of the call, with or without it.
  Left Reference(bool with_call, std::int64_t* launches = nullptr) {
    Scene scene(kind().memory);
    const std::int64_t before = scene.Launches();
    const std::unique_ptr<Attempt> attempt = with_call ? kind().make(scene, absl::InfiniteFuture()) : nullptr;
    EXPECT_EQ(Run(scene, attempt.get(), [] {}).ok(), with_call);
    if (launches != nullptr) *launches = scene.Launches() - before;
    return LeftIn(scene);
  }

 private:
  const std::vector<Kind> kinds_ = Kinds();
};

TEST_P(DeadlineAtEachStage, AtAnyOperationItIsBeforeTheCallOrAfterIt) {
  std::int64_t launches = 0;
  const Left before = Reference(false);
  const Left after = Reference(true, &launches);
  ASSERT_FALSE(before == after);
  if (kind().is_merged) {
    EXPECT_EQ(launches, 2) << "one for both, behind another call's";
  }
  std::optional<int> commit;
  for (int operations = 0; !HasFailure(); ++operations) {
    SCOPED_TRACE(operations);
    std::optional<Operation> at;
    Scene scene(kind().memory);
    const std::unique_ptr<Attempt> attempt = kind().make(scene, absl::InfiniteFuture());
    const Result result = Run(scene, attempt.get(), [&] {
      scene.AtOperation(operations, [&](Operation operation) {
        at = operation;
        attempt->call().Cancel(Passed());
      });
    });
    if (result.ok()) {
      EXPECT_EQ(result->positions[0], scene.Position(2));
      EXPECT_EQ(result->positions.back(), scene.Position(0));
    } else {
      EXPECT_EQ(result.status(), Passed());
      EXPECT_FALSE(commit.has_value()) << "only before the commit has begun";
    }
    EXPECT_TRUE(LeftIn(scene) == (result.ok() ? after : before));
    scene.ExpectToServe();
    if (!at.has_value()) break;
    if (result.ok() && !commit.has_value()) {
      commit = operations;
      EXPECT_EQ(*at, kind().commits_with);
    }
    if (commit.has_value()) continue;

    // The same, and nobody tells.
    Scene untold(kind().memory);
    const absl::Time deadline = cache::SteadyNow() + absl::Milliseconds(1);
    const std::unique_ptr<Attempt> late = kind().make(untold, deadline);
    const Result none = Run(untold, late.get(), [&] {
      untold.AtOperation(operations, [deadline](Operation) {
        while (cache::SteadyNow() < deadline) absl::SleepFor(deadline - cache::SteadyNow());
      });
    });
    EXPECT_EQ(none.status().code(), absl::StatusCode::kDeadlineExceeded) << none.status();
    EXPECT_TRUE(LeftIn(untold) == before);
    untold.ExpectToServe();
  }
  EXPECT_GT(commit.value_or(0), 0) << "something has to come before the commit";
}

TEST_P(DeadlineAtEachStage, WhileItWaitsItIsBeforeTheCall) {
  std::int64_t launches = 0;
  Reference(true, &launches);
  const auto check = [this](const std::string& stage, const std::function<void(Scene&, Attempt&)>& run) {
    SCOPED_TRACE(stage);
    Scene scene(kind().memory);
    const Left before = LeftIn(scene);
    const std::unique_ptr<Attempt> attempt = kind().make(scene, absl::InfiniteFuture());
    run(scene, *attempt);
    EXPECT_EQ(attempt->Take().status(), Passed());
    scene.Settle();
    EXPECT_TRUE(LeftIn(scene) == before);
    scene.ExpectToServe();
  };

  check("before it starts", [](Scene&, Attempt& attempt) {
    attempt.call().Cancel(Passed());
    attempt.StartAtOnce();
  });
  check("for its slots", [](Scene& scene, Attempt& attempt) {
    const Slots layers = {0};
    const Slots slots = {2};
    const cache::SlotSequencer::Claim claim = scene.session->cache()->sequencer().Enqueue(layers, slots, [] {});
    attempt.StartAtOnce();
    EXPECT_FALSE(attempt.IsAnswered());
    attempt.call().Cancel(Passed());
    EXPECT_TRUE(attempt.IsAnswered()) << "it need not wait any longer";
  });
  if (!kind().comes_behind) {
    check("for a worker", [](Scene& scene, Attempt& attempt) {
      EXPECT_EQ(WhileTheWorkerIsBusy(scene.world,
                                     [&] {
                                       attempt.StartAtOnce();
                                       attempt.call().Cancel(Passed());
                                       EXPECT_FALSE(attempt.IsAnswered()) << "it has its turn still before it";
                                     }),
                absl::OkStatus());
    });
  }
  if (kind().waits) {
    // For the ready event, or between two segments: all but the last one have been computed.
    check("for what it is to be given", [&](Scene& scene, Attempt& attempt) {
      const bool is_streamed = kind().memory == Memory::kUnified;
      const std::int64_t awaited = scene.Launches() + (is_streamed ? launches - 1 : 0);
      attempt.Start();
      EXPECT_TRUE(
          test::Eventually([&] { return scene.Launches() >= awaited && scene.world.engine->load().running == 0; }));
      EXPECT_FALSE(attempt.IsAnswered());
      attempt.call().Cancel(Passed());
      EXPECT_TRUE(attempt.IsAnswered()) << "it need not wait any longer";
      attempt.GoOn();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Prefills, DeadlineAtEachStage, ::testing::Range<std::size_t>(0, Kinds().size()),
                         [](const auto& index) { return Kinds()[index.param].name; });

}  // namespace
}  // namespace gdpcache::engine
