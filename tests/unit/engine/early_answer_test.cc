#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "tests/support/eventually.h"
#include "tests/unit/engine/device_caller.h"
#include "tests/unit/engine/engine_world.h"
#include "tests/unit/engine/two_callers.h"

/// Prefills whose tensors are all in the device's memory and that have a done event: they are answered when they have
/// been launched. Whatever comes next on their slots comes behind them all the same, and waits on its stream.
namespace gdpcache::engine {
namespace {

using testing::Problem;

TEST(EarlyAnswer, ASecondCallOnTheSlotIsLaunchedBeforeTheFirstIsCompleteAndComesBehindIt) {
  TwoCallers in_turn;
  ASSERT_EQ(in_turn.first->Run().status(), absl::OkStatus());
  ASSERT_TRUE(in_turn.NothingUnderWay());
  ASSERT_EQ(in_turn.second->Run().status(), absl::OkStatus());
  ASSERT_TRUE(in_turn.NothingUnderWay());

  TwoCallers scene;
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
  TwoCallers scene;
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  EXPECT_GT(scene.first->users(), 0);
  scene.world.device->Resume();
  ASSERT_TRUE(scene.NothingUnderWay());
  EXPECT_TRUE(test::Eventually([&] { return scene.first->users() == 0; }));
}

TEST(EarlyAnswer, ARefusedCallInBetweenDoesNotHideTheWorkBeforeIt) {
  TwoCallers in_turn;
  ASSERT_TRUE(in_turn.first->Run().ok() && in_turn.NothingUnderWay());
  ASSERT_TRUE(in_turn.second->Run().ok() && in_turn.NothingUnderWay());

  TwoCallers scene;
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
  std::function<void(TwoCallers&, std::function<void(absl::Status)>)> start;
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
void StartHostPrefill(TwoCallers& scene, std::function<void(absl::Status)> over,
                      const std::function<void(PrefillRequest&)>& change) {
  struct State {
    Problem problem = OneSequence(60, 1, 2);
    testing::Outputs outputs;
    std::vector<std::byte> auxiliary{TwoCallers::kAuxiliary, std::byte{9}};
    Slots auxiliary_shape = {1, TwoCallers::kAuxiliary};
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
                               .data_bytes = TwoCallers::kAuxiliary};
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
       [](TwoCallers& scene, auto over) {
         StartMade(scene.world.engine->ResetSlots({.session = scene.session}, {1}, Telling<absl::Status>(over)));
       }},
      {"copy from",
       [](TwoCallers& scene, auto over) {
         StartMade(
             scene.world.engine->CopySlots({.session = scene.session}, {{1, {2, 3}}}, Telling<absl::Status>(over)));
       }},
      {"copy to",
       [](TwoCallers& scene, auto over) {
         StartMade(scene.world.engine->CopySlots({.session = scene.session}, {{0, {1}}}, Telling<absl::Status>(over)));
       }},
      {"copies in a circle",
       [](TwoCallers& scene, auto over) {
         StartMade(scene.world.engine->CopySlots({.session = scene.session}, {{0, {2}}, {1, {0}}, {2, {1}}},
                                                 Telling<absl::Status>(over)));
       }},
      {"save and restore elsewhere",
       [](TwoCallers& scene, auto over) {
         InBackground(
             [&scene] {
               absl::Status status = Save(scene.world, scene.session, {{.slot = 1, .key = KeyOf("a")}}).status();
               if (!status.ok()) return status;
               return Restore(scene.world, scene.session, {{.key = KeyOf("a"), .slots = {3}}}).status();
             },
             over);
       }},
      {"restore",
       [](TwoCallers& scene, auto over) {
         StartMade(scene.world.engine->RestoreSnapshots({.session = scene.session}, {{KeyOf("zero"), {1}}},
                                                        Telling<absl::StatusOr<Slots>>(over)));
       }},
      {"write",
       [](TwoCallers& scene, auto over) {
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
       [](TwoCallers& scene, auto over) {
         Outcome<absl::Status> released;
         StartMade(scene.world.engine->ReleaseSlots({.session = scene.session}, {1},
                                                    [&](absl::Status status) { released.Set(std::move(status)); }));
         ASSERT_EQ(released.Take(), absl::OkStatus());
         StartMade(scene.world.engine->AcquireSlots({.session = scene.world.OpenSessionOn(scene.cache())}, 1,
                                                    Telling<absl::StatusOr<Slots>>(over)));
       }},
      {"prefill from the host",
       [](TwoCallers& scene, auto over) { StartHostPrefill(scene, over, [](PrefillRequest&) {}); }},
      {"checked prefill",
       [](TwoCallers& scene, auto over) {
         StartHostPrefill(scene, over, [](PrefillRequest& request) { request.check_finite = true; });
       }},
      {"prefill with auxiliary bytes and a snapshot",
       [](TwoCallers& scene, auto over) {
         StartHostPrefill(scene, over, [](PrefillRequest& request) { request.auxiliary_state.present = true; });
       }},
      {"streamed prefill",
       [](TwoCallers& scene, auto over) {
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
std::int64_t Waits(const TwoCallers& scene) {
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
  const auto prepare = [](TwoCallers& scene) {
    ASSERT_TRUE(Save(scene.world, scene.session, {{.slot = 2, .key = KeyOf("zero")}}).ok());
  };
  TwoCallers in_turn(small_segments);
  prepare(in_turn);
  ASSERT_TRUE(in_turn.first->Run().ok() && in_turn.NothingUnderWay());
  Outcome<absl::Status> wanted;
  use.start(in_turn, [&wanted](absl::Status status) { wanted.Set(std::move(status)); });
  ASSERT_EQ(wanted.Take(), absl::OkStatus());
  ASSERT_TRUE(in_turn.NothingUnderWay());

  TwoCallers scene(small_segments);
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
  TwoCallers scene;
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  const std::int64_t waits = Waits(scene);
  CollectingPeer peer;
  Outcome<absl::Status> outcome;
  Slots positions;
  const auto call = scene.world.engine->ReadSlots(
      {.session = scene.session}, {.slots = {1}}, [&](const SlotContents& contents) { positions = contents.positions; },
      peer, [&](absl::Status status) { outcome.Set(std::move(status)); });
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
  TwoCallers scene;
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

TEST(EarlyAnswer, NoMemoryThatGoesWithItIsGivenBackByTheThreadThatEverybodysEventsWaitFor) {
  TwoCallers scene;
  LastUse last_use(scene.world, *scene.first);
  scene.world.device->Hold();
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  last_use.BeginsNow();
  Outcome<bool> closed;
  Outcome<bool> deleted;
  const std::string name = scene.cache().spec().name;
  ASSERT_EQ(scene.world.catalog.CloseSession(scene.session->id(), cache::kDefaultTenant, [&] { closed.Set(true); }),
            absl::OkStatus());
  ASSERT_EQ(scene.world.catalog.DeleteCache(name, /*force=*/true, [&] { deleted.Set(true); }), absl::OkStatus());
  for (DeviceCaller* caller : {scene.first.get(), scene.second.get()}) caller->LetGoOfSession();
  scene.session.reset();
  EXPECT_FALSE(last_use.HasEnded());
  scene.world.device->Resume();
  last_use.ExpectThatItEndsOnTheThreadForIt();
  EXPECT_TRUE(closed.Take());
  EXPECT_TRUE(deleted.Take());
  EXPECT_EQ(scene.world.catalog.state_memory_used(), 0);
  EXPECT_EQ(scene.world.device->frees_by_lookers(), 0);
}

TEST(EarlyAnswer, MoreCallsThanThereAreStreamsWaitForOneAndAllComeInOrder) {
  constexpr int kCalls = 60;
  TwoCallers scene({.workers = 2});
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

  TwoCallers in_turn;
  for (int i = 0; i < kCalls; ++i) {
    DeviceCaller caller(in_turn.world, in_turn.session, OneSequence(17, i % 4, i));
    ASSERT_TRUE(caller.Run().ok() && in_turn.NothingUnderWay());
  }
  EXPECT_EQ(Fingerprint(scene.cache()), Fingerprint(in_turn.cache()));
}

TEST(EarlyAnswer, AnErrorOfTheDeviceBehindItIsItsLoss) {
  TwoCallers scene;
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
  TwoCallers scene;
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
  TwoCallers scene;
  scene.world.backend.FailAfter(Operation::kRecord, 0, absl::ResourceExhaustedError("no events"));
  EXPECT_EQ(scene.first->Run().value().positions, Slots{100});
  EXPECT_TRUE(scene.first->IsDone());
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(EarlyAnswer, TheEnginesEndWaitsForTheWorkUnderWay) {
  TwoCallers scene;
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

TEST(EarlyAnswer, ManyClientsAtOnceGetWhatTheyGetInTurn) {
  constexpr int kClients = 4;
  constexpr int kCalls = 50;
  const auto problem_of = [](int client, int call) {
    return OneSequence(1 + (client * 7 + call * 5) % 40, client, static_cast<std::uint64_t>(client * kCalls + call));
  };
  const auto run = [&](TwoCallers& scene, int client, const std::function<void()>& after) {
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
  TwoCallers at_once({.workers = 2});
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] { run(at_once, client, [] {}); });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(at_once.NothingUnderWay());
  TwoCallers in_turn;
  for (int client = 0; client < kClients; ++client) {
    run(in_turn, client, [&in_turn] { EXPECT_TRUE(in_turn.NothingUnderWay()); });
  }
  EXPECT_EQ(Fingerprint(at_once.cache()), Fingerprint(in_turn.cache()));
}

}  // namespace
}  // namespace gdpcache::engine
