#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/engine/slot_memory.h"
#include "tests/reference/numbers.h"
#include "tests/unit/engine/engine_world.h"

/// What becomes of a prefill's snapshots when it waits, is cancelled, expires or fails, at every stage.
namespace gdpcache::engine {
namespace {

using cache::SnapshotResult;
using testing::Problem;

constexpr std::int64_t kAuxiliary = 7;

/// The problem on a cache of some layers, as a call that keeps the beginning, the middle and the end of every sequence,
/// the end under so many keys that one has to be copied there.
struct Scene {
  explicit Scene(Memory memory = Memory::kUnified, std::int64_t layers = 1, const Tiers& tiers = DeviceTier())
      : world({.segment_bytes = std::int64_t{16} << 10}, memory, tiers) {
    session = world.OpenSession(GeometryOf(problem, layers, kAuxiliary));
    for (std::int64_t layer = 0; layer < layers; ++layer) LoadState(cache(), layer, problem.state);
    before = Fingerprint(cache());
    for (std::int64_t n = 0; n < problem.sequences(); ++n) {
      const std::int64_t last = problem.BoundaryCount(n);
      for (const std::int64_t boundary : {std::int64_t{0}, last / 2, last, last, last}) {
        keys.push_back(KeyOf(std::to_string(keys.size())));
        directives.push_back({.sequence = n, .boundary = boundary, .key = "", .auxiliary = "7 bytes"});
      }
    }
    for (std::size_t i = 0; i < keys.size(); ++i) directives[i].key = keys[i];
  }

  cache::Cache& cache() const { return *session->cache(); }

  PrefillRequest Request(bool streamed) const {
    PrefillRequest request = RequestOf(problem, streamed ? TensorTransport::kStream : TensorTransport::kInline);
    request.snapshots = directives;
    return request;
  }

  absl::StatusOr<PrefillResult> Run(bool streamed, const PrefillRequest& request) {
    auto ran =
        streamed ? RunStreamed(world, session, problem, request, 1, 50) : RunUnary(world, session, problem, request);
    if (!ran.ok()) return ran.status();
    return std::move(ran->result);
  }
  absl::StatusOr<PrefillResult> Run(bool streamed) { return Run(streamed, Request(streamed)); }

  std::int64_t kept_bytes() const { return world.store->tiers().front().used; }
  std::size_t kept() const { return world.store->List(SpaceOf(*session), "", 1000).size(); }

  void ExpectNothingKept() const {
    EXPECT_EQ(Fingerprint(cache()), before);
    EXPECT_EQ(world.engine->staging().used(), 0);
    EXPECT_EQ(world.engine->device_staging().used(), 0);
    EXPECT_EQ(kept(), 0U);
    EXPECT_EQ(kept_bytes(), 0);
  }

  const Problem problem = SmallProblem();
  World world;
  std::shared_ptr<cache::Session> session;
  std::vector<std::string> keys;
  std::vector<SnapshotDirective> directives;
  std::size_t before = 0;
};

class SnapshotLifecycle : public ::testing::TestWithParam<std::tuple<bool, Memory>> {
 protected:
  bool streamed() const { return std::get<0>(GetParam()); }
  Memory memory() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Calls, SnapshotLifecycle,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(Memory::kUnified, Memory::kSeparate)),
                         [](const auto& call) {
                           return std::string(std::get<0>(call.param) ? "Streamed" : "Unary") +
                                  (std::get<1>(call.param) == Memory::kUnified ? "" : "InSeparateMemory");
                         });

TEST_P(SnapshotLifecycle, AFailureAtAnyStageOfTheBackendKeepsNothingOrOnlyWhatIsWhole) {
  Scene clean(memory());
  const auto expected = clean.Run(streamed());
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::size_t after = Fingerprint(clean.cache());
  for (const Operation operation : {Operation::kAllocate, Operation::kRunRecurrence, Operation::kCopyStates,
                                    Operation::kCopyBytes, Operation::kFindNonFinite, Operation::kRecord}) {
    for (int turn = 0; turn < 60; ++turn) {
      SCOPED_TRACE(::testing::Message() << "operation " << static_cast<int>(operation) << ", turn " << turn);
      Scene scene(memory());
      PrefillRequest request = scene.Request(streamed());
      request.check_finite = true;
      const std::int64_t calls = scene.world.backend.calls(operation);
      scene.world.backend.FailAfter(operation, turn, absl::ResourceExhaustedError("injected"));
      const auto result = scene.Run(streamed(), request);
      const bool injected = scene.world.backend.calls(operation) - calls > turn;
      scene.world.backend.FailAfter(operation, -1, absl::OkStatus());
      if (!result.ok()) {
        if (absl::IsUnavailable(result.status())) {  // results that cannot leave the device are its loss
          EXPECT_EQ(memory(), Memory::kSeparate);
          EXPECT_EQ(scene.kept(), 0U);
          EXPECT_EQ(scene.kept_bytes(), 0);
          continue;
        }
        EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
        scene.ExpectNothingKept();
        EXPECT_TRUE(scene.Run(streamed()).ok());
        EXPECT_EQ(scene.kept(), scene.keys.size());
        continue;
      }
      EXPECT_EQ(Fingerprint(scene.cache()), after);
      scene.world.store->WaitUntilIdle();
      std::size_t stored = 0;
      for (std::size_t i = 0; i < scene.keys.size(); ++i) {
        const cache::SnapshotOutcome& outcome = result->snapshots[i];
        EXPECT_EQ(outcome.position, expected->snapshots[i].position);
        const auto kept = ReadSnapshot(scene.world, *scene.session, scene.keys[i]);
        // Memory that cannot be had makes the store evict what it has.
        if (outcome.result == SnapshotResult::kStored && operation == Operation::kAllocate && !kept.ok()) continue;
        if (outcome.result == SnapshotResult::kStored) {
          ++stored;
          ASSERT_TRUE(kept.ok()) << kept.status();
          EXPECT_EQ(*kept, ReadSnapshot(clean.world, *clean.session, scene.keys[i]).value());
        } else {
          EXPECT_EQ(outcome.result, SnapshotResult::kNoSpace);
          EXPECT_NE(outcome.message, "");
          EXPECT_EQ(kept.status().code(), absl::StatusCode::kNotFound);
        }
      }
      EXPECT_EQ(scene.kept(), stored);
      if (!injected) {
        EXPECT_EQ(stored, scene.keys.size());
        break;
      }
    }
  }
}

TEST_P(SnapshotLifecycle, WithoutSpaceTheCallGoesOn) {
  Scene clean(memory());
  ASSERT_TRUE(clean.Run(streamed()).ok());
  Scene scene(memory(), 1, DeviceTier(1000));
  const auto result = scene.Run(streamed());
  ASSERT_TRUE(result.ok()) << result.status();
  for (const cache::SnapshotOutcome& outcome : result->snapshots) {
    EXPECT_EQ(outcome.result, SnapshotResult::kNoSpace);
    EXPECT_NE(outcome.message, "");
  }
  EXPECT_EQ(Fingerprint(scene.cache()), Fingerprint(clean.cache()));
}

TEST_P(SnapshotLifecycle, LayersThatNameDifferentPositionsFailTheCallBeforeItChangesAnything) {
  Scene scene(memory(), 2);
  ASSERT_TRUE(scene.Run(streamed()).ok());
  EXPECT_EQ(scene.kept(), 0U);  // the other layer is missing
  const std::int64_t pending = scene.kept_bytes();
  scene.cache().slots().SetPosition(1, 2, 10);
  const std::size_t before = Fingerprint(scene.cache());
  PrefillRequest request = scene.Request(streamed());
  request.layer = 1;
  const auto result = scene.Run(streamed(), request);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Fingerprint(scene.cache()), before);
  EXPECT_EQ(scene.kept_bytes(), pending);
  EXPECT_EQ(scene.world.engine->staging().used(), 0);
  scene.cache().slots().SetPosition(1, 2, 0);
  const auto again = scene.Run(streamed(), request);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(scene.kept(), scene.keys.size());
}

TEST_P(SnapshotLifecycle, UnfinishedOnesGoWithTheSession) {
  Scene scene(memory(), 2);
  const auto result = scene.Run(streamed());
  ASSERT_TRUE(result.ok()) << result.status();
  for (const cache::SnapshotOutcome& outcome : result->snapshots) EXPECT_EQ(outcome.result, SnapshotResult::kPending);
  EXPECT_GT(scene.kept_bytes(), 0);
  ASSERT_TRUE(scene.world.catalog.CloseSession(scene.session->id(), cache::kDefaultTenant, [] {}).ok());
  EXPECT_EQ(scene.kept_bytes(), 0);
}

TEST_P(SnapshotLifecycle, AKeyThatIsThereIsNotWrittenAgain) {
  Scene scene(memory());
  ASSERT_TRUE(scene.Run(streamed()).ok());
  const Kept first = ReadSnapshot(scene.world, *scene.session, scene.keys[1]).value();
  const std::int64_t kept = scene.kept_bytes();
  const auto again = scene.Run(streamed());
  ASSERT_TRUE(again.ok()) << again.status();
  for (const cache::SnapshotOutcome& outcome : again->snapshots) EXPECT_EQ(outcome.result, SnapshotResult::kPresent);
  EXPECT_EQ(again->snapshots[1].position, first.position);
  EXPECT_EQ(again->positions[0], 600);
  EXPECT_EQ(ReadSnapshot(scene.world, *scene.session, scene.keys[1]).value(), first);
  EXPECT_EQ(scene.kept_bytes(), kept);
}

TEST_P(SnapshotLifecycle, OfSequencesThatReachOneKeyTheFirstIsKept) {
  Scene alone(memory());
  PrefillRequest request = alone.Request(streamed());
  const std::string key = KeyOf("shared");
  request.snapshots = {{.sequence = 1, .boundary = 0, .key = key, .auxiliary = "7 bytes"}};
  ASSERT_TRUE(alone.Run(streamed(), request).ok());

  Scene scene(memory());
  request.snapshots.push_back({.sequence = 0, .boundary = 0, .key = key, .auxiliary = "7 bytes"});
  request.snapshots.push_back({.sequence = 2, .boundary = 0, .key = key, .auxiliary = "7 bytes"});
  const auto result = scene.Run(streamed(), request);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->snapshots.size(), 3U);
  EXPECT_EQ(result->snapshots[0].result, SnapshotResult::kStored);
  EXPECT_EQ(result->snapshots[1].result, SnapshotResult::kPresent);
  EXPECT_EQ(result->snapshots[2].result, SnapshotResult::kPresent);
  EXPECT_EQ(ReadSnapshot(scene.world, *scene.session, key).value(),
            ReadSnapshot(alone.world, *alone.session, key).value());
  EXPECT_EQ(scene.kept_bytes(), alone.kept_bytes());
}

TEST_P(SnapshotLifecycle, OneKeyAtTwoPositionsFailsTheCallBeforeItChangesAnything) {
  Scene scene(memory());
  PrefillRequest request = scene.Request(streamed());
  const std::string key = KeyOf("shared");
  request.snapshots = {{.sequence = 0, .boundary = 0, .key = key, .auxiliary = "7 bytes"},
                       {.sequence = 0, .boundary = 1, .key = key, .auxiliary = "7 bytes"}};
  const auto result = scene.Run(streamed(), request);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr("snapshots[1] is at position"));
  scene.ExpectNothingKept();
}

TEST_P(SnapshotLifecycle, ACallThatFailsItsChecksKeepsNothing) {
  Scene scene(memory());
  const std::vector<std::int64_t> expected = {5, -1, -1};
  PrefillRequest request = scene.Request(streamed());
  request.expected_positions = expected;
  EXPECT_EQ(scene.Run(streamed(), request).status().code(), absl::StatusCode::kFailedPrecondition);
  scene.ExpectNothingKept();

  Problem& problem = const_cast<Problem&>(scene.problem);
  testing::Encode(problem.k.dtype, std::numeric_limits<double>::infinity(),
                  problem.k.bytes.data() + problem.k.bytes.size() - 2);
  request = scene.Request(streamed());
  request.check_finite = true;
  EXPECT_EQ(scene.Run(streamed(), request).status().code(), absl::StatusCode::kInvalidArgument);
  scene.ExpectNothingKept();
}

TEST(SnapshotLifetime, ACallPastItsDeadlineKeepsNothing) {
  Scene scene;
  const PrefillRequest request = scene.Request(false);
  testing::Outputs outputs;
  Outcome<absl::Status> outcome;
  const auto call =
      *scene.world.engine->Prefill({.session = scene.session, .deadline = absl::Now() - absl::Seconds(1)}, request,
                                   [&outcome](absl::StatusOr<PrefillResult> result) { outcome.Set(result.status()); });
  call->SetOutputs(OutputsOf(scene.problem, call->plan(), outputs));
  call->Start();
  EXPECT_EQ(outcome.Take().code(), absl::StatusCode::kDeadlineExceeded);
  scene.ExpectNothingKept();
}

TEST(SnapshotLifetime, AWaitingCallTakesNoMemory) {
  Scene scene;
  Outcome<bool> entered;
  Outcome<bool> leave;
  std::atomic<bool> first = true;
  scene.world.backend.BeforeEach(Operation::kRunRecurrence, [&] {
    if (!first.exchange(false)) return;
    entered.Set(true);
    leave.Take();
  });
  PrefillRequest plain = scene.Request(false);
  plain.snapshots.clear();
  std::thread running([&] { EXPECT_TRUE(RunUnary(scene.world, scene.session, scene.problem, plain).ok()); });
  entered.Take();

  const PrefillRequest request = scene.Request(false);
  testing::Outputs outputs;
  Outcome<absl::Status> outcome;
  const auto waiting =
      *scene.world.engine->Prefill({.session = scene.session}, request,
                                   [&outcome](absl::StatusOr<PrefillResult> result) { outcome.Set(result.status()); });
  waiting->SetOutputs(OutputsOf(scene.problem, waiting->plan(), outputs));
  waiting->Start();
  EXPECT_EQ(scene.kept_bytes(), 0);
  waiting->Cancel(absl::CancelledError("no more"));
  EXPECT_EQ(outcome.Take(), absl::CancelledError("no more"));
  leave.Set(true);
  running.join();
  EXPECT_EQ(scene.kept_bytes(), 0);
  EXPECT_EQ(scene.kept(), 0U);
}

TEST(SnapshotLifetime, AStreamCancelledBetweenItsSegmentsKeepsNothing) {
  Scene scene;
  CollectingPeer peer;
  Outcome<absl::Status> outcome;
  const auto call =
      *scene.world.engine->PrefillStream({.session = scene.session}, scene.Request(true), peer,
                                         [&](absl::StatusOr<PrefillResult> result) { outcome.Set(result.status()); });
  peer.SetCall(call.get());
  call->Start();
  std::vector<Feed> feeds = FeedsOf(scene.problem);
  for (Feed& feed : feeds) ASSERT_TRUE(Send(*call, feed, feed.size - 1).ok());
  call->Cancel(absl::CancelledError("gone"));
  EXPECT_EQ(outcome.Take(), absl::CancelledError("gone"));
  scene.ExpectNothingKept();
}

TEST(SnapshotLifetime, AServerWithoutAStoreSaysSo) {
  Scene scene;
  scene.world.engine = *Engine::Create(scene.world.backend, {});
  for (const bool streamed : {false, true}) {
    EXPECT_EQ(scene.Run(streamed).status().code(), absl::StatusCode::kUnimplemented);
  }
  EXPECT_EQ(Save(scene.world, scene.session, {}).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Restore(scene.world, scene.session, {}).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ReadSnapshot(scene.world, *scene.session, KeyOf("a")).status().code(), absl::StatusCode::kUnimplemented);
  scene.ExpectNothingKept();
}

}  // namespace
}  // namespace gdpcache::engine
