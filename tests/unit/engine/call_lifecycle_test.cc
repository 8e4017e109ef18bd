#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/cache/errors.h"
#include "tests/reference/numbers.h"
#include "tests/unit/engine/engine_world.h"

/// What happens to a call that waits, is cancelled, expires or fails, at every stage.
namespace gdpcache::engine {
namespace {

using testing::Problem;

constexpr EngineOptions kSmallSegments = {.segment_bytes = std::int64_t{16} << 10};
constexpr std::int64_t kAuxiliary = 7;

/// The problem on a cache that keeps auxiliary bytes, as a call that brings some.
struct Scene {
  explicit Scene(const EngineOptions& options = kSmallSegments, Memory memory = Memory::kUnified)
      : world(options, memory) {
    session = world.OpenSession(GeometryOf(problem, 1, kAuxiliary));
    LoadState(*session->cache(), 0, problem.state);
    before = Fingerprint(*session->cache());
  }

  PrefillRequest Request(TensorTransport transport) {
    PrefillRequest request = RequestOf(problem, transport);
    request.auxiliary_state = {.present = true, .dtype = ElementType::kUint8, .shape = auxiliary_shape};
    if (transport == TensorTransport::kInline) {
      request.auxiliary_state.data = auxiliary.data();
      request.auxiliary_state.data_bytes = static_cast<std::int64_t>(auxiliary.size());
    }
    return request;
  }

  Feed AuxiliaryFeed() {
    return {.tensor = StreamTensor::kAuxiliary,
            .data = auxiliary.data(),
            .size = static_cast<std::int64_t>(auxiliary.size())};
  }

  std::vector<Feed> Feeds() {
    std::vector<Feed> feeds = FeedsOf(problem);
    feeds.push_back(AuxiliaryFeed());
    return feeds;
  }

  absl::Status RunUnary(PrefillRequest request) { return engine::RunUnary(world, session, problem, request).status(); }

  absl::Status RunStreamed(PrefillRequest request) {
    return engine::RunStreamed(world, session, problem, request, 1, 50, {AuxiliaryFeed()}).status();
  }

  void ExpectUntouched() {
    EXPECT_EQ(Fingerprint(*session->cache()), before);
    EXPECT_EQ(world.engine->staging().used(), 0);
    EXPECT_EQ(world.engine->device_staging().used(), 0);
  }

  const Problem problem = SmallProblem();
  std::vector<std::byte> auxiliary{3 * kAuxiliary, std::byte{9}};
  std::vector<std::int64_t> auxiliary_shape = {3, kAuxiliary};
  World world;
  std::shared_ptr<cache::Session> session;
  std::size_t before = 0;
};

TEST(Failure, OfTheDeviceIsReportedOnceForEachCallThatMeetsIt) {
  Scene scene;
  std::vector<absl::Status> reports;
  auto engine = Engine::Create(scene.world.backend, kSmallSegments, nullptr,
                               [&reports](const absl::Status& status) { reports.push_back(status); });
  ASSERT_TRUE(engine.ok()) << engine.status();
  scene.world.engine = *std::move(engine);
  ASSERT_TRUE(scene.RunUnary(scene.Request(TensorTransport::kInline)).ok());
  EXPECT_TRUE(reports.empty());

  const absl::Status lost = absl::UnavailableError("fallen off the bus");
  scene.world.backend.FailAfter(Operation::kRunRecurrence, 0, lost);
  EXPECT_EQ(scene.RunUnary(scene.Request(TensorTransport::kInline)), lost);
  EXPECT_EQ(reports, std::vector<absl::Status>{lost});
}

TEST(Failure, BehindALaunchOnADeviceCountsAsItsLoss) {
  World world({}, Memory::kSeparate);
  const Problem problem = SmallProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  // Inputs go up in one copy, results come down in the next, behind the launch.
  world.backend.FailAfter(Operation::kCopyBytes, 1, absl::ResourceExhaustedError("injected"));
  EXPECT_EQ(RunUnary(world, session, problem, RequestOf(problem, TensorTransport::kInline)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(NonFinite, InputsAndStartingStatesFailACheckedCallOnly) {
  for (const bool streamed : {false, true}) {
    for (const std::string field : {"k", "w", "u", "g", "state_indices[2]"}) {
      SCOPED_TRACE(field);
      Scene scene;
      Problem& problem = const_cast<Problem&>(scene.problem);
      const double nan = std::numeric_limits<double>::quiet_NaN();
      const auto spoil = [&](testing::HostTensor& tensor) {
        std::byte* last = tensor.bytes.data() + tensor.bytes.size() - kernels::ByteSize(tensor.dtype);
        testing::Encode(tensor.dtype, nan, last);
      };
      if (field == "k") spoil(problem.k);
      if (field == "w") spoil(problem.w);
      if (field == "u") spoil(problem.u);
      if (field == "g") spoil(problem.g);
      if (field == "state_indices[2]") {
        testing::Encode(problem.state.dtype, nan, scene.session->cache()->pool().State(0, 0).data);
        scene.before = Fingerprint(*scene.session->cache());
      }
      PrefillRequest request = scene.Request(streamed ? TensorTransport::kStream : TensorTransport::kInline);
      request.check_finite = true;
      const absl::Status status = streamed ? scene.RunStreamed(request) : scene.RunUnary(request);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      ASSERT_TRUE(cache::FieldViolationOf(status).has_value());
      EXPECT_EQ(cache::FieldViolationOf(status)->field, field);
      scene.ExpectUntouched();
      request.check_finite = false;
      EXPECT_TRUE((streamed ? scene.RunStreamed(request) : scene.RunUnary(request)).ok());
    }
  }
}

TEST(NonFinite, IgnoredRowsAreNotChecked) {
  for (const bool streamed : {false, true}) {
    Scene scene;
    Problem& problem = const_cast<Problem&>(scene.problem);
    testing::Encode(problem.k.dtype, std::numeric_limits<double>::infinity(),
                    problem.k.bytes.data() + problem.k.bytes.size() - 2);
    PrefillRequest request = scene.Request(streamed ? TensorTransport::kStream : TensorTransport::kInline);
    const std::vector<std::int64_t> bounds = {0, 300, 340, 900};
    request.cu_seqlens = bounds;
    request.check_finite = true;
    EXPECT_TRUE((streamed ? scene.RunStreamed(request) : scene.RunUnary(request)).ok());
  }
}

TEST(IgnoredRows, GiveZerosWhereverSegmentsAreCut) {
  Scene scene;
  PrefillRequest request = RequestOf(scene.problem, TensorTransport::kStream);
  const std::vector<std::int64_t> bounds = {0, 16, 16, 20};
  request.cu_seqlens = bounds;
  const auto ran = RunStreamed(scene.world, scene.session, scene.problem, request, 4);
  ASSERT_TRUE(ran.ok()) << ran.status();
  const std::vector<std::byte>& v_new = ran->outputs.v_new.bytes;
  const std::size_t row = v_new.size() / scene.problem.tokens();
  EXPECT_TRUE(std::all_of(v_new.begin() + 20 * row, v_new.end(), [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_FALSE(
      std::all_of(v_new.begin(), v_new.begin() + 20 * row, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(AuxiliaryState, ReplacesThatOfTheSlotsNamed) {
  for (const bool streamed : {false, true}) {
    Scene scene;
    std::memset(scene.auxiliary.data() + 2 * kAuxiliary, 4, kAuxiliary);
    const absl::Status status = streamed ? scene.RunStreamed(scene.Request(TensorTransport::kStream))
                                         : scene.RunUnary(scene.Request(TensorTransport::kInline));
    ASSERT_TRUE(status.ok()) << status;
    const cache::StatePool& pool = scene.session->cache()->pool();
    EXPECT_EQ(static_cast<const char*>(pool.Auxiliary(0, 2).data)[kAuxiliary - 1], 9);
    EXPECT_EQ(static_cast<const char*>(pool.Auxiliary(0, 0).data)[kAuxiliary - 1], 4);
    EXPECT_EQ(static_cast<const char*>(pool.Auxiliary(0, 1).data)[0], 0);
  }
}

TEST(Positions, ContinueFromTheSlotAndStartAgainFromZeroOrATensor) {
  Scene scene;
  scene.session->cache()->slots().SetPosition(0, 2, 1000);
  PrefillRequest request = scene.Request(TensorTransport::kInline);
  auto ran = RunUnary(scene.world, scene.session, scene.problem, request);
  ASSERT_TRUE(ran.ok());
  EXPECT_THAT(ran->result.positions, ::testing::ElementsAre(1300, -1, 600));
  request.initial_state_source = InitialStateSource::kZero;
  ran = RunUnary(scene.world, scene.session, scene.problem, request);
  ASSERT_TRUE(ran.ok());
  EXPECT_THAT(ran->result.positions, ::testing::ElementsAre(300, -1, 600));
}

TEST(Positions, AMismatchChangesNothingAndTellsThemAll) {
  for (const bool streamed : {false, true}) {
    Scene scene;
    const std::vector<std::int64_t> expected = {3, 99, 4};
    PrefillRequest request = scene.Request(streamed ? TensorTransport::kStream : TensorTransport::kInline);
    request.expected_positions = expected;
    const absl::Status status = streamed ? scene.RunStreamed(request) : scene.RunUnary(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    const auto differences = cache::PositionDifferencesOf(status);
    ASSERT_EQ(differences.size(), 2U);
    EXPECT_EQ(differences[1].slot, 0);
    scene.ExpectUntouched();
  }
}

TEST(NaturalDecays, EqualLog2DecaysConvertedByTheCaller) {
  for (const bool streamed : {false, true}) {
    Scene natural;
    Scene log2;
    Problem& converted = const_cast<Problem&>(log2.problem);
    auto* g = reinterpret_cast<float*>(converted.g.bytes.data());
    for (std::int64_t i = 0; i < converted.g.elements(); ++i) g[i] *= 1.44269504F;
    PrefillRequest request = natural.Request(streamed ? TensorTransport::kStream : TensorTransport::kInline);
    request.natural_decay = true;
    ASSERT_TRUE((streamed ? natural.RunStreamed(request) : natural.RunUnary(request)).ok());
    ASSERT_TRUE(log2.RunUnary(log2.Request(TensorTransport::kInline)).ok());
    EXPECT_EQ(Fingerprint(*natural.session->cache()), Fingerprint(*log2.session->cache()));
  }
}

TEST(Slots, MustBeHeldAndDistinct) {
  Scene scene;
  const auto stranger = scene.world.OpenSessionOn(*scene.session->cache());
  PrefillRequest request = scene.Request(TensorTransport::kInline);
  EXPECT_EQ(RunUnary(scene.world, stranger, scene.problem, request).status().code(),
            absl::StatusCode::kPermissionDenied);
  for (const Slots& slots : std::vector<Slots>{{2, 2, 0}, {2, -2, 0}, {2, 1, scene.problem.state.shape[0]}}) {
    request.state_indices = slots;
    EXPECT_EQ(scene.RunUnary(request).code(), absl::StatusCode::kInvalidArgument);
  }
  scene.ExpectUntouched();
}

/// A unary prefill of the scene.
struct Running {
  explicit Running(Scene& scene, absl::Time deadline = absl::InfiniteFuture()) {
    const PrefillRequest request = scene.Request(TensorTransport::kInline);
    auto made =
        scene.world.engine->Prefill({.session = scene.session, .deadline = deadline}, request,
                                    [this](absl::StatusOr<PrefillResult> result) { outcome.Set(result.status()); });
    EXPECT_TRUE(made.ok()) << made.status();
    call = *std::move(made);
    call->SetOutputs(OutputsOf(scene.problem, call->plan(), outputs));
  }
  testing::Outputs outputs;
  std::shared_ptr<UnaryPrefill> call;
  Outcome<absl::Status> outcome;
};

/// Starts a call and holds it up in its recurrence.
class Gate {
 public:
  Gate(Scene& scene, Running& running) {
    scene.world.backend.BeforeEach(Operation::kRunRecurrence, [this] {
      if (!first_.exchange(false)) return;
      entered_.Set(true);
      leave_.Take();
    });
    starter_ = std::thread([call = running.call] { call->Start(); });  // small calls run where they are started
    entered_.Take();
  }
  ~Gate() { starter_.join(); }
  void Open() { leave_.Set(true); }

 private:
  std::atomic<bool> first_ = true;
  Outcome<bool> entered_;
  Outcome<bool> leave_;
  std::thread starter_;
};

TEST(Order, ACallWaitsForTheOneBeforeItOnItsSlot) {
  Scene scene;
  Running first(scene);
  Gate gate(scene, first);
  Running second(scene);
  second.call->Start();
  EXPECT_FALSE(second.outcome.IsSet());
  gate.Open();
  EXPECT_TRUE(first.outcome.Take().ok());
  EXPECT_TRUE(second.outcome.Take().ok());
  EXPECT_EQ(scene.session->cache()->slots().Position(0, 2), 600);
}

TEST(Order, ThreadsOnOneSlotRunOneAfterTheOther) {
  Scene scene;
  constexpr int kThreads = 4;
  constexpr int kCalls = 10;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&scene, i] {
      for (int round = 0; round < kCalls; ++round) {
        const absl::Status status = (i + round) % 2 == 0 ? scene.RunUnary(scene.Request(TensorTransport::kInline))
                                                         : scene.RunStreamed(scene.Request(TensorTransport::kStream));
        EXPECT_TRUE(status.ok()) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Scene alone;
  for (int i = 0; i < kThreads * kCalls; ++i) {
    ASSERT_TRUE(alone.RunUnary(alone.Request(TensorTransport::kInline)).ok());
  }
  EXPECT_EQ(Fingerprint(*scene.session->cache()), Fingerprint(*alone.session->cache()));
}

TEST(Cancel, AWaitingCallEndsAtOnceAndChangesNothing) {
  Scene scene;
  Running first(scene);
  Gate gate(scene, first);
  Running second(scene);
  second.call->Start();
  Running third(scene);
  third.call->Start();
  second.call->Cancel(absl::CancelledError("no more"));
  EXPECT_EQ(second.outcome.Take(), absl::CancelledError("no more"));
  gate.Open();
  EXPECT_TRUE(first.outcome.Take().ok());
  EXPECT_TRUE(third.outcome.Take().ok());
  EXPECT_EQ(scene.session->cache()->slots().Position(0, 2), 600);
}

TEST(Cancel, ACallThatCommitsIsCompleted) {
  Scene scene;
  Running call(scene);
  Gate gate(scene, call);
  call.call->Cancel(absl::CancelledError("too late"));
  gate.Open();
  EXPECT_TRUE(call.outcome.Take().ok());
  EXPECT_EQ(scene.session->cache()->slots().Position(0, 2), 300);
}

TEST(Cancel, BeforeTheStartEndsTheCallWhenItStarts) {
  Scene scene;
  const PrefillRequest request = scene.Request(TensorTransport::kInline);
  Outcome<absl::Status> outcome;
  const auto call = scene.world.engine->Prefill(
      {.session = scene.session}, request, [&](absl::StatusOr<PrefillResult> result) { outcome.Set(result.status()); });
  ASSERT_TRUE(call.ok());
  (*call)->Cancel(absl::CancelledError("early"));
  (*call)->Start();
  EXPECT_EQ(outcome.Take(), absl::CancelledError("early"));
}

/// A streamed prefill of the scene that has been started.
struct Streaming {
  explicit Streaming(Scene& scene) {
    auto made = scene.world.engine->PrefillStream({.session = scene.session}, scene.Request(TensorTransport::kStream),
                                                  peer, [this](const absl::StatusOr<PrefillResult>& result) {
                                                    peer.InputWanted();  // whoever waits for it shall see the end
                                                    outcome.Set(result.status());
                                                  });
    EXPECT_TRUE(made.ok()) << made.status();
    call = *std::move(made);
    peer.SetCall(call.get());
    call->Start();
  }
  CollectingPeer peer;
  Outcome<absl::Status> outcome;
  std::shared_ptr<StreamedPrefill> call;
};

TEST(Cancel, AStreamBetweenItsSegmentsChangesNothing) {
  Scene scene;
  Streaming stream(scene);
  std::vector<Feed> feeds = scene.Feeds();
  for (Feed& feed : feeds) ASSERT_TRUE(Send(*stream.call, feed, feed.size - 1).ok());
  stream.call->Cancel(absl::CancelledError("gone"));
  EXPECT_EQ(stream.outcome.Take(), absl::CancelledError("gone"));
  scene.ExpectUntouched();
  EXPECT_EQ(stream.call->Place(StreamTensor::kK, 0, 1).status(), absl::CancelledError("gone"));
  EXPECT_TRUE(scene.RunUnary(scene.Request(TensorTransport::kInline)).ok());
}

TEST(Cancel, WhileBytesAreBeingPlacedKeepsTheirPlace) {
  Scene scene;
  Streaming stream(scene);
  for (const StreamTensor tensor : {StreamTensor::kK, StreamTensor::kAuxiliary}) {
    const auto place = stream.call->Place(tensor, 0, 10);
    stream.call->Cancel(absl::CancelledError("gone"));
    if (!place.ok()) continue;  // the second time round
    std::memset(place->data(), 1, place->size());
    stream.call->Placed(place->size());
  }
  EXPECT_EQ(stream.outcome.Take(), absl::CancelledError("gone"));
  scene.ExpectUntouched();
}

TEST(Deadline, PassedBeforeTheCommitChangesNothing) {
  Scene scene;
  Running call(scene, absl::Now() - absl::Seconds(1));
  call.call->Start();
  EXPECT_EQ(call.outcome.Take().code(), absl::StatusCode::kDeadlineExceeded);
  scene.ExpectUntouched();
}

TEST(SessionEnd, CancelsItsCallsAndFreesItsSlotsOnlyWhenTheyAreOver) {
  Scene scene;
  Running committing(scene);
  Gate gate(scene, committing);
  Running waiting(scene);
  waiting.call->Start();
  const cache::SlotTable& slots = scene.session->cache()->slots();
  Outcome<bool> closed;
  ASSERT_TRUE(
      scene.world.catalog.CloseSession(scene.session->id(), cache::kDefaultTenant, [&closed] { closed.Set(true); })
          .ok());
  EXPECT_EQ(waiting.outcome.Take().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(closed.IsSet());
  EXPECT_EQ(slots.free_count(), 0);
  gate.Open();
  EXPECT_TRUE(committing.outcome.Take().ok());
  closed.Take();
  EXPECT_EQ(slots.free_count(), scene.session->cache()->geometry().slots);
  EXPECT_EQ(scene.RunUnary(scene.Request(TensorTransport::kInline)).code(), absl::StatusCode::kNotFound);
}

TEST(Admission, CallsBeyondTheBudgetAreRefusedBeforeTheyTakeAnything) {
  Scene scene({.staging_bytes = 50'000, .max_unary_output_bytes = 1 << 20, .segment_bytes = 4'000});
  const absl::Status unary = scene.RunUnary(scene.Request(TensorTransport::kInline));
  EXPECT_EQ(unary.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(unary.message(), ::testing::HasSubstr("the server has 50000"));
  EXPECT_EQ(scene.world.engine->staging().used(), 0);
}

TEST(Admission, LargeUnaryResultsAreSentToTheStream) {
  Scene scene({.max_unary_output_bytes = 10'000});
  const absl::Status status = scene.RunUnary(scene.Request(TensorTransport::kInline));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("call PrefillStream"));
}

/// Sends the tensors in step until the call wants no more for now, or all is sent.
void SendWhileWanted(StreamedInput& call, std::vector<Feed>& feeds) {
  for (int part = 0; part < 100 && call.WantsInput(); ++part) {
    for (Feed& feed : feeds) {
      ASSERT_TRUE(Send(call, feed, std::min(feed.size - feed.sent, feed.size / 100 + 1)).ok());
    }
  }
}

TEST(Overlap, OnADeviceTheNextSegmentSetsOutBeforeTheResultsOfTheOneBeforeAreWaitedFor) {
  Scene scene(kSmallSegments, Memory::kSeparate);
  std::mutex mutex;
  std::string order;
  const auto note = [&](char what) {
    const std::lock_guard lock(mutex);
    order += what;
  };
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  scene.world.backend.BeforeEach(Operation::kRunRecurrence, [&] {
    opened.wait();
    note('r');
  });
  scene.world.backend.BeforeEach(Operation::kSynchronize, [&] { note('w'); });

  Streaming stream(scene);
  std::vector<Feed> feeds = scene.Feeds();
  SendWhileWanted(*stream.call, feeds);
  gate.set_value();  // the first segment is held up until now, and more are there
  std::mt19937_64 random(1);
  ASSERT_TRUE(SendAll(*stream.call, stream.peer, feeds, random, 50).ok());
  EXPECT_EQ(stream.outcome.Take(), absl::OkStatus());
  const std::lock_guard lock(mutex);
  EXPECT_EQ(order.substr(0, 3), "rrw");
}

TEST(BackPressure, AStreamWhoseResultsAreNotTakenStopsTakingInput) {
  Scene scene;
  Streaming stream(scene);
  stream.peer.Hold();
  std::vector<Feed> feeds = scene.Feeds();
  SendWhileWanted(*stream.call, feeds);
  EXPECT_LT(feeds[0].sent, feeds[0].size);
  stream.call->Cancel(absl::CancelledError("enough"));
  EXPECT_EQ(stream.outcome.Take(), absl::CancelledError("enough"));
  scene.ExpectUntouched();
}

}  // namespace
}  // namespace gdpcache::engine
