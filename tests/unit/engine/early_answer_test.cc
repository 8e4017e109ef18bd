#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "tests/support/eventually.h"
#include "tests/unit/engine/device_caller.h"
#include "tests/unit/engine/engine_world.h"

/// Prefills whose tensors are all in the device's memory and that have a done event: they are answered when they have
/// been launched. Whatever comes next on their slots comes behind them all the same, and waits on its stream. The same
/// with a done flag, but that they are answered when it is set.
namespace gdpcache::engine {
namespace {

using testing::Problem;

constexpr std::int64_t kAuxiliary = 7;

struct Scene {
  explicit Scene(const EngineOptions& options = {.workers = 1}) : world(options, Memory::kAsynchronous) {
    session = world.OpenSession(
        {.layers = 1, .slots = kSlots, .heads = 2, .key_dim = 16, .value_dim = 8, .auxiliary_bytes = kAuxiliary});
    first = std::make_unique<DeviceCaller>(world, session, OneSequence(100, 1, 1));
    second = std::make_unique<DeviceCaller>(world, session, OneSequence(60, 1, 2));
  }

  cache::Cache& cache() const { return *session->cache(); }
  bool NothingUnderWay() const {
    return test::Eventually(
        [this] { return world.engine->admission().calls() == 0 && world.engine->load().running == 0; });
  }

  static constexpr std::int64_t kSlots = 4;
  World world;
  std::shared_ptr<cache::Session> session;
  std::unique_ptr<DeviceCaller> first;
  std::unique_ptr<DeviceCaller> second;
};

TEST(EarlyAnswer, ASecondCallOnTheSlotIsLaunchedBeforeTheFirstIsCompleteAndComesBehindIt) {
  Scene in_turn;
  ASSERT_EQ(in_turn.first->Run().status(), absl::OkStatus());
  ASSERT_TRUE(in_turn.NothingUnderWay());
  ASSERT_EQ(in_turn.second->Run().status(), absl::OkStatus());
  ASSERT_TRUE(in_turn.NothingUnderWay());

  Scene scene;
  scene.world.device->Hold();
  EXPECT_EQ(scene.first->Run().value().positions, Slots{100});
  EXPECT_EQ(scene.second->Run().value().positions, Slots{160});
  EXPECT_EQ(scene.world.device->launches(), 2);
  EXPECT_EQ(scene.cache().slots().Position(0, 1), 160);
  scene.world.device->WaitUntilStuck();
  EXPECT_FALSE(scene.first->IsDone());
  EXPECT_FALSE(scene.second->IsDone());
  EXPECT_TRUE(test::Eventually([&] { return scene.world.engine->load().running == 2; }));
  scene.world.device->Resume();  // the last launch first, were there no order
  ASSERT_TRUE(scene.NothingUnderWay());
  EXPECT_TRUE(scene.first->IsDone());
  EXPECT_TRUE(scene.second->IsDone());
  EXPECT_EQ(Fingerprint(scene.cache()), Fingerprint(in_turn.cache()));
}

TEST(EarlyAnswer, TheCallKeepsItsMemoryUntilItsWorkIsComplete) {
  Scene scene;
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  EXPECT_GT(scene.first->users(), 0);
  scene.world.device->Resume();
  ASSERT_TRUE(scene.NothingUnderWay());
  EXPECT_TRUE(test::Eventually([&] { return scene.first->users() == 0; }));
}

TEST(EarlyAnswer, ARefusedCallInBetweenDoesNotHideTheWorkBeforeIt) {
  Scene in_turn;
  ASSERT_TRUE(in_turn.first->Run().ok() && in_turn.NothingUnderWay());
  ASSERT_TRUE(in_turn.second->Run().ok() && in_turn.NothingUnderWay());

  Scene scene;
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  const Slots wrong = {99};
  scene.second->request().expected_positions = wrong;
  EXPECT_EQ(scene.second->Run().status().code(), absl::StatusCode::kFailedPrecondition);
  const Slots right = {100};
  scene.second->request().expected_positions = right;
  EXPECT_EQ(scene.second->Run().status(), absl::OkStatus());
  scene.world.device->WaitUntilStuck();
  scene.world.device->Resume();
  ASSERT_TRUE(scene.NothingUnderWay());
  EXPECT_EQ(Fingerprint(scene.cache()), Fingerprint(in_turn.cache()));
}

/// Something else that is done with the slot; tells by itself when it is over.
struct Use {
  std::string name;
  std::function<void(Scene&, std::function<void(absl::Status)>)> start;
};

template <typename T>
absl::AnyInvocable<void(T)> Telling(std::function<void(absl::Status)> over) {
  return [over = std::move(over)](T result) {
    if constexpr (std::is_same_v<T, absl::Status>) {
      over(std::move(result));
    } else {
      over(result.status());
    }
  };
}

template <typename Made>
void StartMade(const Made& made) {
  ASSERT_TRUE(made.ok()) << made.status();
  (*made)->Start();
}

/// A prefill whose tensors come from the host.
void StartHostPrefill(Scene& scene, std::function<void(absl::Status)> over,
                      const std::function<void(PrefillRequest&)>& change) {
  struct State {
    Problem problem = OneSequence(60, 1, 2);
    testing::Outputs outputs;
    std::vector<std::byte> auxiliary{kAuxiliary, std::byte{9}};
    Slots auxiliary_shape = {1, kAuxiliary};
    std::string key = KeyOf("boundary");
  };
  const auto state = std::make_shared<State>();
  PrefillRequest request = RequestOf(state->problem, TensorTransport::kInline);
  change(request);
  if (request.auxiliary_state.present) {
    request.auxiliary_state = {.present = true,
                               .dtype = ElementType::kUint8,
                               .shape = state->auxiliary_shape,
                               .data = state->auxiliary.data(),
                               .data_bytes = kAuxiliary};
    request.snapshots.push_back({.sequence = 0, .boundary = 2, .key = state->key, .auxiliary = "1234567"});
  }
  const auto made = scene.world.engine->Prefill(
      {.session = scene.session}, request, [state, over = std::move(over)](Result result) { over(result.status()); });
  ASSERT_TRUE(made.ok()) << made.status();
  (*made)->SetOutputs(OutputsOf(state->problem, (*made)->plan(), state->outputs));
  (*made)->Start();
}

/// Runs `run`, which waits, on a thread of its own.
void InBackground(const std::function<absl::Status()>& run, const std::function<void(absl::Status)>& over) {
  std::thread([run, over] { over(run()); }).detach();
}

std::vector<Use> Uses() {
  return {
      {"reset",
       [](Scene& scene, auto over) {
         StartMade(scene.world.engine->ResetSlots({.session = scene.session}, {1}, Telling<absl::Status>(over)));
       }},
      {"copy from",
       [](Scene& scene, auto over) {
         StartMade(
             scene.world.engine->CopySlots({.session = scene.session}, {{1, {2, 3}}}, Telling<absl::Status>(over)));
       }},
      {"copy to",
       [](Scene& scene, auto over) {
         StartMade(scene.world.engine->CopySlots({.session = scene.session}, {{0, {1}}}, Telling<absl::Status>(over)));
       }},
      {"copies in a circle",
       [](Scene& scene, auto over) {
         StartMade(scene.world.engine->CopySlots({.session = scene.session}, {{0, {2}}, {1, {0}}, {2, {1}}},
                                                 Telling<absl::Status>(over)));
       }},
      {"save and restore elsewhere",
       [](Scene& scene, auto over) {
         InBackground(
             [&scene] {
               absl::Status status = Save(scene.world, scene.session, {{.slot = 1, .key = KeyOf("a")}}).status();
               if (!status.ok()) return status;
               return Restore(scene.world, scene.session, {{.key = KeyOf("a"), .slots = {3}}}).status();
             },
             over);
       }},
      {"restore",
       [](Scene& scene, auto over) {
         StartMade(scene.world.engine->RestoreSnapshots({.session = scene.session}, {{KeyOf("zero"), {1}}},
                                                        Telling<absl::StatusOr<Slots>>(over)));
       }},
      {"write",
       [](Scene& scene, auto over) {
         InBackground(
             [&scene]() -> absl::Status {
               const cache::Geometry& geometry = scene.cache().geometry();
               const Slots shape = {1, 1, geometry.heads, geometry.key_dim, geometry.value_dim};
               const std::vector<std::byte> bytes(static_cast<std::size_t>(geometry.state_bytes()), std::byte{1});
               WriteSlotsRequest request;
               request.selection = {.slots = {1}, .layers = {0}};
               request.state = {.present = true, .dtype = ElementType::kFloat32, .shape = shape};
               Outcome<absl::Status> outcome;
               const auto call = scene.world.engine->WriteSlots(
                   {.session = scene.session}, request, [&](absl::Status status) { outcome.Set(std::move(status)); });
               if (!call.ok()) return call.status();
               (*call)->Start();
               Feed feed{.tensor = StreamTensor::kState, .data = bytes.data(), .size = geometry.state_bytes()};
               if (Send(**call, feed, feed.size).ok()) (*call)->EndOfInput();
               return outcome.Take();
             },
             over);
       }},
      {"release and new acquisition",
       [](Scene& scene, auto over) {
         Outcome<absl::Status> released;
         StartMade(scene.world.engine->ReleaseSlots({.session = scene.session}, {1},
                                                    [&](absl::Status status) { released.Set(std::move(status)); }));
         ASSERT_EQ(released.Take(), absl::OkStatus());
         StartMade(scene.world.engine->AcquireSlots({.session = scene.world.OpenSessionOn(scene.cache())}, 1,
                                                    Telling<absl::StatusOr<Slots>>(over)));
       }},
      {"prefill from the host", [](Scene& scene, auto over) { StartHostPrefill(scene, over, [](PrefillRequest&) {}); }},
      {"checked prefill",
       [](Scene& scene, auto over) {
         StartHostPrefill(scene, over, [](PrefillRequest& request) { request.check_finite = true; });
       }},
      {"prefill with auxiliary bytes and a snapshot",
       [](Scene& scene, auto over) {
         StartHostPrefill(scene, over, [](PrefillRequest& request) { request.auxiliary_state.present = true; });
       }},
      {"streamed prefill",
       [](Scene& scene, auto over) {
         InBackground(
             [&scene] {
               const Problem problem = OneSequence(600, 1, 3);
               PrefillRequest request = RequestOf(problem, TensorTransport::kStream);
               return RunStreamed(scene.world, scene.session, problem, request, 1).status();
             },
             over);
       }},
  };
}

/// How often somebody has begun to wait for the device.
std::int64_t Waits(const Scene& scene) {
  return scene.world.backend.calls(Operation::kSynchronize) + scene.world.backend.calls(Operation::kFindNonFinite);
}

class UseOfAnUnfinishedSlot : public ::testing::TestWithParam<std::size_t> {};

INSTANTIATE_TEST_SUITE_P(Uses, UseOfAnUnfinishedSlot, ::testing::Range<std::size_t>(0, Uses().size()),
                         [](const auto& index) {
                           std::string name = Uses()[index.param].name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST_P(UseOfAnUnfinishedSlot, ComesBehindTheWorkUnderWay) {
  const Use use = Uses()[GetParam()];
  const EngineOptions small_segments = {.workers = 1, .segment_bytes = std::int64_t{16} << 10};
  const auto prepare = [](Scene& scene) {
    ASSERT_TRUE(Save(scene.world, scene.session, {{.slot = 2, .key = KeyOf("zero")}}).ok());
  };
  Scene in_turn(small_segments);
  prepare(in_turn);
  ASSERT_TRUE(in_turn.first->Run().ok() && in_turn.NothingUnderWay());
  Outcome<absl::Status> wanted;
  use.start(in_turn, [&wanted](absl::Status status) { wanted.Set(std::move(status)); });
  ASSERT_EQ(wanted.Take(), absl::OkStatus());
  ASSERT_TRUE(in_turn.NothingUnderWay());

  Scene scene(small_segments);
  prepare(scene);
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  const std::int64_t waits = Waits(scene);
  Outcome<absl::Status> outcome;
  use.start(scene, [&outcome](absl::Status status) { outcome.Set(std::move(status)); });
  ASSERT_TRUE(test::Eventually([&] { return Waits(scene) > waits; }));
  scene.world.device->WaitUntilStuck();
  EXPECT_FALSE(outcome.IsSet());
  scene.world.device->Resume();
  EXPECT_EQ(outcome.Take(), absl::OkStatus());
  ASSERT_TRUE(scene.NothingUnderWay());
  EXPECT_EQ(Fingerprint(scene.cache()), Fingerprint(in_turn.cache()));
}

TEST(EarlyAnswer, ReadingTheSlotWaitsForTheWorkUnderWay) {
  Scene scene;
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  const std::int64_t waits = Waits(scene);
  CollectingPeer peer;
  Outcome<absl::Status> outcome;
  Slots positions;
  const auto call = scene.world.engine->ReadSlots(
      {.session = scene.session}, {.slots = {1}, .layers = {}},
      [&](const SlotContents& contents) { positions = contents.positions; }, peer,
      [&](absl::Status status) { outcome.Set(std::move(status)); });
  ASSERT_TRUE(call.ok()) << call.status();
  peer.SetCall(call->get());
  (*call)->Start();
  ASSERT_TRUE(test::Eventually([&] { return Waits(scene) > waits; }));
  scene.world.device->WaitUntilStuck();
  EXPECT_FALSE(outcome.IsSet());
  scene.world.device->Resume();
  EXPECT_EQ(outcome.Take(), absl::OkStatus());
  EXPECT_EQ(positions, Slots{100});
  ASSERT_TRUE(scene.NothingUnderWay());
  const Kept kept = ContentOf(scene.cache(), 1);
  const std::vector<std::byte> read = peer.Take(StreamTensor::kState);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(read.data()), read.size()), kept.states[0]);
}

TEST(EarlyAnswer, TheEndOfASessionWaitsForTheWorkUnderWayAndSoDoesThatOfItsCache) {
  Scene scene;
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  Outcome<bool> closed;
  Outcome<bool> deleted;
  const std::string name = scene.cache().spec().name;
  ASSERT_EQ(scene.world.catalog.CloseSession(scene.session->id(), cache::kDefaultTenant, [&] { closed.Set(true); }),
            absl::OkStatus());
  EXPECT_FALSE(closed.IsSet());
  EXPECT_EQ(scene.cache().slots().counts().free, 0);
  ASSERT_EQ(scene.world.catalog.DeleteCache(name, /*force=*/true, [&] { deleted.Set(true); }), absl::OkStatus());
  for (DeviceCaller* caller : {scene.first.get(), scene.second.get()}) caller->LetGoOfSession();
  scene.session.reset();
  scene.world.device->WaitUntilStuck();
  EXPECT_FALSE(closed.IsSet());
  EXPECT_FALSE(deleted.IsSet());
  scene.world.device->Resume();
  EXPECT_TRUE(closed.Take());
  EXPECT_TRUE(deleted.Take());
}

TEST(EarlyAnswer, MoreCallsThanThereAreStreamsWaitForOneAndAllComeInOrder) {
  constexpr int kCalls = 60;
  Scene scene({.workers = 2});
  std::vector<std::unique_ptr<DeviceCaller>> callers;
  for (int i = 0; i < kCalls; ++i) {
    callers.push_back(std::make_unique<DeviceCaller>(scene.world, scene.session, OneSequence(17, i % 4, i)));
  }
  scene.world.device->Hold();
  for (const auto& caller : callers) caller->Start();
  scene.world.device->WaitUntilStuck();
  EXPECT_LT(scene.world.device->launches(), kCalls);
  scene.world.device->Resume();
  for (const auto& caller : callers) EXPECT_EQ(caller->Take().status(), absl::OkStatus());
  ASSERT_TRUE(scene.NothingUnderWay());

  Scene in_turn;
  for (int i = 0; i < kCalls; ++i) {
    DeviceCaller caller(in_turn.world, in_turn.session, OneSequence(17, i % 4, i));
    ASSERT_TRUE(caller.Run().ok() && in_turn.NothingUnderWay());
  }
  EXPECT_EQ(Fingerprint(scene.cache()), Fingerprint(in_turn.cache()));
}

TEST(EarlyAnswer, AnErrorOfTheDeviceBehindItIsItsLoss) {
  Scene scene;
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  ASSERT_EQ(scene.second->Run().status(), absl::OkStatus());
  EXPECT_EQ(scene.world.losses.load(), 0);
  scene.world.backend.FailForEverAfter(Operation::kQuery, 0, absl::InternalError("illegal address"));
  ASSERT_TRUE(scene.NothingUnderWay()) << "nobody waits for what a lost device does";
  EXPECT_GT(scene.world.losses.load(), 0);
  EXPECT_FALSE(scene.first->Run().ok());
  scene.world.device->Resume();
  scene.world.device->WaitUntilStuck();  // it is not really lost, and needs the memory
}

TEST(EarlyAnswer, ARefusedOrderBehindEarlierWorkFailsTheCallAndChangesNothing) {
  Scene scene;
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  scene.world.backend.FailAfter(Operation::kAwait, 0, absl::InternalError("injected"));
  scene.second->Start();
  scene.world.device->Resume();
  EXPECT_EQ(scene.second->Take().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(scene.cache().slots().Position(0, 1), 100);
  EXPECT_EQ(scene.second->Run().value().positions, Slots{160});
  EXPECT_TRUE(scene.NothingUnderWay());
  EXPECT_EQ(scene.world.losses.load(), 0);
}

TEST(EarlyAnswer, WithoutAnEventOfItsOwnTheCallIsWaitedFor) {
  Scene scene;
  scene.world.backend.FailAfter(Operation::kRecord, 0, absl::ResourceExhaustedError("no events"));
  EXPECT_EQ(scene.first->Run().value().positions, Slots{100});
  EXPECT_TRUE(scene.first->IsDone());
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(EarlyAnswer, TheEnginesEndWaitsForTheWorkUnderWay) {
  Scene scene;
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  ASSERT_EQ(scene.second->Run().status(), absl::OkStatus());
  std::thread resume([&scene] {
    scene.world.device->WaitUntilStuck();
    scene.world.device->Resume();
  });
  scene.world.engine.reset();
  EXPECT_TRUE(scene.first->IsDone());
  EXPECT_TRUE(scene.second->IsDone());
  resume.join();
}

TEST(ReadyEvent, IsWaitedForByTheCallAloneWhichTakesItsPlaceThen) {
  Scene scene;
  DeviceCaller elsewhere(scene.world, scene.session, OneSequence(30, 2, 3));
  void* const ready = scene.world.device->MakeEvent(false);
  scene.first->SetReadyEvent(ready);
  scene.first->Start();
  EXPECT_EQ(elsewhere.Run().value().positions, Slots{30}) << "with one worker";
  EXPECT_EQ(scene.second->Run().value().positions, Slots{60}) << "of the same slot";
  EXPECT_EQ(scene.world.device->launches(), 2);
  EXPECT_FALSE(scene.first->IsAnswered());
  scene.world.device->Happen(ready);
  EXPECT_EQ(scene.first->Take().value().positions, Slots{160});
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(ReadyEvent, OfACallWhoseSlotIsReleasedMeanwhileFailsIt) {
  Scene scene;
  void* const ready = scene.world.device->MakeEvent(false);
  scene.first->SetReadyEvent(ready);
  scene.first->Start();
  EXPECT_EQ(Complete<absl::Status>([&](Done done) {
              return scene.world.engine->ReleaseSlots({.session = scene.session}, {1}, std::move(done));
            }),
            absl::OkStatus());
  scene.world.device->Happen(ready);
  EXPECT_EQ(scene.first->Take().status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(scene.world.device->launches(), 0);
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(ReadyEvent, ThatHasHappenedCostsNothing) {
  Scene scene;
  scene.first->SetReadyEvent(scene.world.device->MakeEvent(true));
  scene.world.device->Hold();
  scene.first->Start();
  EXPECT_TRUE(scene.first->IsAnswered()) << "on this thread";
  EXPECT_EQ(scene.first->Take().status(), absl::OkStatus());
  scene.world.device->Resume();
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(ReadyEvent, OfACallThatTheHostHasToCompleteIsWaitedForToo) {
  Scene scene;
  void* const ready = scene.world.device->MakeEvent(false);
  scene.first->SetReadyEvent(ready);
  scene.first->request().done_event = nullptr;
  scene.first->request().check_finite = true;  // the other way through the engine
  scene.first->Start();
  EXPECT_EQ(scene.world.device->launches(), 0);
  scene.world.device->Happen(ready);
  EXPECT_EQ(scene.first->Take().value().positions, Slots{100});
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(ReadyEvent, ThatNeverHappensFailsItsCallAtTheLimitAndNobodyElses) {
  const EngineOptions options = {.workers = 1, .max_ready_wait = absl::Milliseconds(50)};
  Scene scene(options);
  const std::size_t before = Fingerprint(scene.cache());
  std::vector<std::unique_ptr<DeviceCaller>> stuck;
  for (int i = 0; i < 40; ++i) {
    stuck.push_back(std::make_unique<DeviceCaller>(scene.world, scene.session, OneSequence(5, i % 2, 9)));
    stuck.back()->SetReadyEvent(scene.world.device->MakeEvent(false));
    stuck.back()->Start();
  }
  DeviceCaller elsewhere(scene.world, scene.session, OneSequence(30, 2, 3));
  EXPECT_EQ(elsewhere.Run().status(), absl::OkStatus());
  for (const auto& caller : stuck) {
    const absl::Status status = caller->Take().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("ready_event has not happened within 50ms"));
  }
  EXPECT_TRUE(scene.NothingUnderWay());
  EXPECT_EQ(Complete<absl::Status>([&](Done done) {
              return scene.world.engine->ResetSlots({.session = scene.session}, {2}, std::move(done));
            }),
            absl::OkStatus());
  EXPECT_EQ(Fingerprint(scene.cache()), before);
  EXPECT_EQ(scene.first->Run().value().positions, Slots{100});
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(ReadyEvent, OfACallThatIsCancelledOrWhoseSessionEndsIsNotLookedAtAnyMore) {
  Scene scene;
  scene.first->SetReadyEvent(scene.world.device->MakeEvent(false));
  scene.second->SetReadyEvent(scene.world.device->MakeEvent(false));
  scene.first->Start();
  scene.second->Start();
  scene.first->Cancel();
  EXPECT_EQ(scene.first->Take().status().code(), absl::StatusCode::kCancelled);
  Outcome<bool> closed;
  ASSERT_EQ(scene.world.catalog.CloseSession(scene.session->id(), cache::kDefaultTenant, [&] { closed.Set(true); }),
            absl::OkStatus());
  EXPECT_EQ(scene.second->Take().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(closed.Take());
  EXPECT_TRUE(scene.NothingUnderWay());
  EXPECT_TRUE(test::Eventually([&] { return scene.first->users() == 0 && scene.second->users() == 0; }));
  EXPECT_EQ(scene.cache().slots().counts().free, Scene::kSlots);
}

TEST(DoneFlag, IsSetBehindTheWorkWithTheAnswerWhileTheSlotsAreLaterCallsFromTheLaunchOn) {
  Scene in_turn;
  ASSERT_TRUE(in_turn.first->Run().ok() && in_turn.NothingUnderWay());
  ASSERT_TRUE(in_turn.second->Run().ok() && in_turn.NothingUnderWay());

  Scene scene;
  scene.first->SetDoneFlag(5);
  scene.second->SetDoneFlag(6);
  scene.world.device->Hold();
  scene.first->Start();
  scene.second->Start();
  scene.world.device->WaitUntilStuck();
  EXPECT_EQ(scene.world.device->launches(), 2);
  EXPECT_EQ(scene.cache().slots().Position(0, 1), 160);
  EXPECT_FALSE(scene.first->IsAnswered());
  EXPECT_FALSE(scene.second->IsAnswered());
  EXPECT_EQ(scene.first->flag(), 0);
  EXPECT_EQ(scene.second->flag(), 0);
  EXPECT_GT(scene.first->users(), 0);
  scene.world.device->Resume();  // the last launch first, were there no order
  const Result result = scene.second->Take();
  EXPECT_EQ(scene.second->flag(), 6);
  EXPECT_EQ(scene.first->flag(), 5) << "the work before it is complete";
  EXPECT_EQ(result.value().positions, Slots{160});
  EXPECT_GE(result->timing.total_us, result->timing.compute_us);
  EXPECT_EQ(scene.first->Take().value().positions, Slots{100});
  EXPECT_EQ(scene.first->users(), 0) << "who has the answer may take its memory back";
  ASSERT_TRUE(scene.NothingUnderWay());
  EXPECT_TRUE(scene.first->NothingElseIsWritten());
  EXPECT_EQ(Fingerprint(scene.cache()), Fingerprint(in_turn.cache()));
}

TEST(DoneFlag, OrdersCallsOfOneStreamThatArriveInTheWrongOrder) {
  Scene in_turn;
  ASSERT_TRUE(in_turn.first->Run().ok() && in_turn.NothingUnderWay());
  ASSERT_TRUE(in_turn.second->Run().ok() && in_turn.NothingUnderWay());

  Scene scene;
  void* const behind_first = scene.world.device->MakeEvent(false);
  scene.first->SetDoneFlag(1);
  scene.first->SetReadyEvent(scene.world.device->MakeEvent(true));
  scene.second->SetDoneFlag(1);
  scene.second->SetReadyEvent(behind_first);
  scene.second->Start();
  scene.first->Start();
  ASSERT_TRUE(test::Eventually([&] { return scene.first->flag() == 1; }));  // as the client's stream waits
  EXPECT_FALSE(scene.second->IsAnswered());
  scene.world.device->Happen(behind_first);
  EXPECT_EQ(scene.second->Take().value().positions, Slots{160});
  EXPECT_EQ(scene.second->flag(), 1);
  EXPECT_EQ(scene.first->Take().value().positions, Slots{100});
  ASSERT_TRUE(scene.NothingUnderWay());
  EXPECT_EQ(Fingerprint(scene.cache()), Fingerprint(in_turn.cache()));
}

TEST(DoneFlag, IsNeverSetByACallThatFails) {
  const EngineOptions options = {.workers = 1, .max_ready_wait = absl::Milliseconds(50)};
  Scene scene(options);
  scene.first->SetDoneFlag(1);
  const Slots wrong = {99};
  scene.first->request().expected_positions = wrong;
  EXPECT_EQ(scene.first->Run().status().code(), absl::StatusCode::kFailedPrecondition);
  scene.first->request().expected_positions = {};
  scene.second->SetDoneFlag(1);
  scene.second->SetReadyEvent(scene.world.device->MakeEvent(false));
  EXPECT_EQ(scene.second->Run().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(scene.NothingUnderWay());
  EXPECT_EQ(scene.first->flag(), 0);
  EXPECT_EQ(scene.second->flag(), 0);
  EXPECT_EQ(scene.cache().slots().Position(0, 1), 0);
}

TEST(DoneFlag, OfACallThatIsCancelledBeforeItsLaunchIsNotSetAndAfterItIs) {
  Scene scene;
  scene.first->SetDoneFlag(1);
  scene.first->SetReadyEvent(scene.world.device->MakeEvent(false));
  scene.first->Start();
  scene.first->Cancel();
  EXPECT_EQ(scene.first->Take().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scene.first->flag(), 0);
  scene.second->SetDoneFlag(1);
  scene.world.device->Hold();
  scene.second->Start();
  scene.second->Cancel();
  EXPECT_FALSE(scene.second->IsAnswered());
  scene.world.device->Resume();
  EXPECT_EQ(scene.second->Take().value().positions, Slots{60});
  EXPECT_EQ(scene.second->flag(), 1);
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(DoneFlag, AnErrorOfTheDeviceBehindTheLaunchIsTheCallsOwn) {
  Scene scene;
  scene.first->SetDoneFlag(1);
  scene.world.device->Hold();
  scene.first->Start();
  scene.world.backend.FailForEverAfter(Operation::kQuery, 0, absl::InternalError("illegal address"));
  EXPECT_EQ(scene.first->Take().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(scene.first->flag(), 0);
  EXPECT_GT(scene.world.losses.load(), 0);
  scene.world.device->Resume();
  scene.world.device->WaitUntilStuck();  // it is not really lost, and needs the memory
}

TEST(DoneFlag, IsSetByTheHostWhereTheDeviceCannotOrTheHostHasSomethingToDo) {
  Scene scene;
  scene.world.device->RefuseValues();
  scene.first->SetDoneFlag(7);
  EXPECT_EQ(scene.first->Run().value().positions, Slots{100});
  EXPECT_EQ(scene.first->flag(), 7);

  Scene checked;
  checked.first->SetDoneFlag(8);
  checked.first->request().check_finite = true;
  EXPECT_EQ(checked.first->Run().value().positions, Slots{100});
  EXPECT_EQ(checked.first->flag(), 8);

  Scene without_event;
  without_event.world.backend.FailAfter(Operation::kRecord, 0, absl::ResourceExhaustedError("no events"));
  without_event.first->SetDoneFlag(9);
  EXPECT_EQ(without_event.first->Run().value().positions, Slots{100});
  EXPECT_EQ(without_event.first->flag(), 9);
  EXPECT_TRUE(scene.NothingUnderWay() && checked.NothingUnderWay() && without_event.NothingUnderWay());
}

TEST(DoneFlag, BesideADoneEventComesWithTheLateAnswer) {
  Scene scene;
  scene.first->SetDoneFlag(1);
  scene.first->request().done_event = scene.first->done_event();
  scene.world.device->Hold();
  scene.first->Start();
  scene.world.device->WaitUntilStuck();
  EXPECT_FALSE(scene.first->IsAnswered());
  EXPECT_FALSE(scene.first->IsDone());
  scene.world.device->Resume();
  EXPECT_EQ(scene.first->Take().status(), absl::OkStatus());
  EXPECT_TRUE(scene.first->IsDone());
  EXPECT_EQ(scene.first->flag(), 1);
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(DoneFlag, OfManyCallsAtOnceAreAllSet) {
  constexpr int kCalls = 60;  // more than there are streams: the rest is merged
  Scene scene({.workers = 2});
  std::vector<std::unique_ptr<DeviceCaller>> callers;
  for (int i = 0; i < kCalls; ++i) {
    callers.push_back(std::make_unique<DeviceCaller>(scene.world, scene.session, OneSequence(17, i % 4, i)));
    callers.back()->SetDoneFlag(static_cast<std::uint32_t>(i + 1));
  }
  scene.world.device->Hold();
  for (const auto& caller : callers) caller->Start();
  scene.world.device->WaitUntilStuck();
  for (const auto& caller : callers) EXPECT_EQ(caller->flag(), 0);
  scene.world.device->Resume();
  for (int i = 0; i < kCalls; ++i) {
    EXPECT_EQ(callers[i]->Take().status(), absl::OkStatus());
    EXPECT_EQ(callers[i]->flag(), static_cast<std::uint32_t>(i + 1));
  }
  ASSERT_TRUE(scene.NothingUnderWay());
}

TEST(DoneFlag, ThatIsNoWordOfSystemMemoryOfItsOwnIsRefused) {
  Scene scene;
  DeviceCaller& caller = *scene.first;
  caller.SetDoneFlag(1);
  const RegionPlace good = caller.request().done_flag.place;
  const auto refused = [&](const RegionPlace& place, const std::string& message) {
    caller.request().done_flag.place = place;
    const auto made = scene.world.engine->Prefill({.session = scene.session}, caller.request(), [](const Result&) {});
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(made.status().message(), ::testing::HasSubstr(message));
  };
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{7}, kMost}) {
    refused({good.region, offset}, absl::StrCat("done_flag.place.offset is ", offset, "; it must be a multiple of"));
  }
  for (const std::uint64_t offset : {std::uint64_t{12}, std::uint64_t{1} << 32, kMost - 3}) {
    refused({good.region, offset}, absl::StrCat("done_flag.place.offset is ", offset));
  }
  refused({caller.memory(), 0}, "done_flag.place.region is memory of the GPU; it must be system memory");
  refused({caller.done_event(), 0}, "done_flag.place.region is an event; it must be memory");
  caller.request().done_flag.place = good;
  EXPECT_EQ(caller.Run().status(), absl::OkStatus());
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(EarlyAnswer, ManyClientsAtOnceGetWhatTheyGetInTurn) {
  constexpr int kClients = 4;
  constexpr int kCalls = 50;
  const auto problem_of = [](int client, int call) {
    return OneSequence(1 + (client * 7 + call * 5) % 40, client, static_cast<std::uint64_t>(client * kCalls + call));
  };
  const auto run = [&](Scene& scene, int client, const std::function<void()>& after) {
    std::mt19937 random(static_cast<unsigned>(client));
    std::vector<std::unique_ptr<DeviceCaller>> callers;
    for (int call = 0; call < kCalls; ++call) {
      callers.push_back(std::make_unique<DeviceCaller>(scene.world, scene.session, problem_of(client, call)));
      EXPECT_EQ(callers.back()->Run().status(), absl::OkStatus());
      if (random() % 8 == 0) {
        EXPECT_EQ(Complete<absl::Status>([&](Done done) {
                    return scene.world.engine->ResetSlots({.session = scene.session}, {client}, std::move(done));
                  }),
                  absl::OkStatus());
      }
      after();
    }
    EXPECT_TRUE(test::Eventually([&] {  // what they point to must stay so long
      return std::all_of(callers.begin(), callers.end(), [](const auto& caller) { return caller->users() == 0; });
    }));
  };
  Scene at_once({.workers = 2});
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] { run(at_once, client, [] {}); });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(at_once.NothingUnderWay());
  Scene in_turn;
  for (int client = 0; client < kClients; ++client) {
    run(in_turn, client, [&in_turn] { EXPECT_TRUE(in_turn.NothingUnderWay()); });
  }
  EXPECT_EQ(Fingerprint(at_once.cache()), Fingerprint(in_turn.cache()));
}

}  // namespace
}  // namespace gdpcache::engine
