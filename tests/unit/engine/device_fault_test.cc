#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/engine/slot_memory.h"
#include "tests/support/eventually.h"
#include "tests/unit/engine/device_caller.h"
#include "tests/unit/engine/engine_world.h"

/// Every operation of the backend fails once at each of its turns in each kind of call, and the device is lost there.
/// Whatever it is, a call that fails has changed nothing, nothing stays behind, and the next call is served; unless the
/// device is lost, which is reported. On a device with a thread of its own every call comes behind work on its slots
/// that is still under way.
namespace gdpcache::engine {
namespace {

using testing::Problem;

constexpr EngineOptions kSmallSegments = {.workers = 1, .segment_bytes = std::int64_t{16} << 10};
constexpr std::int64_t kAuxiliary = 7;

/// A session with states in its slots, and a snapshot of one of them.
struct Scene {
  explicit Scene(Memory memory) : world(kSmallSegments, memory) {
    session = world.OpenSession(GeometryOf(problem, 1, kAuxiliary));
    LoadState(*session->cache(), 0, problem.state);
    EXPECT_TRUE(Save(world, session, {{.slot = 1, .key = KeyOf("kept")}}).ok());
    snapshot_bytes = world.store->tiers()[0].used;
    if (world.device != nullptr) LeaveWorkUnderWay();
  }
  ~Scene() {
    if (world.device != nullptr) LetGoOn();  // a device that counts as lost needs the memory, too
  }

  /// Work on all slots that sequences name, which goes on when somebody waits for the device; who does finds it idle,
  /// so that a wait may fail without what it was for going on behind it.
  void LeaveWorkUnderWay() {
    world.device->Hold();
    EXPECT_EQ(NewCaller({100, 20, 60}, {0, 1, 2}).Run().status(), absl::OkStatus());
    for (const Operation wait : {Operation::kSynchronize, Operation::kFindNonFinite}) {
      world.backend.BeforeEach(wait, [this] { LetGoOn(); });
    }
  }

  void LetGoOn() {
    world.device->Resume();
    world.device->WaitUntilStuck();
  }

  /// Lets everything come to its end, which leaves nothing behind.
  void Settle() {
    if (world.device != nullptr) {
      LetGoOn();
      EXPECT_TRUE(test::Eventually([this] { return world.engine->admission().calls() == 0; }));
      LetGoOn();
    }
    EXPECT_TRUE(NothingUnderWay(world));
    for (const std::unique_ptr<DeviceCaller>& caller : callers) EXPECT_EQ(caller->users(), 0);
  }

  DeviceCaller& NewCaller(std::vector<std::int64_t> lengths, Slots slots) {
    callers.push_back(
        std::make_unique<DeviceCaller>(world, session, Sequences(std::move(lengths), std::move(slots), 1)));
    return *callers.back();
  }
  DeviceCaller& NewCaller() { return NewCaller({90, 30}, {2, 0}); }

  PrefillRequest Request(TensorTransport transport) {
    PrefillRequest request = RequestOf(problem, transport);
    request.auxiliary_state = {.present = true, .dtype = ElementType::kUint8, .shape = auxiliary_shape};
    if (transport == TensorTransport::kInline) {
      request.auxiliary_state.data = auxiliary.data();
      request.auxiliary_state.data_bytes = static_cast<std::int64_t>(auxiliary.size());
    }
    return request;
  }

  /// Snapshots within a sequence, at its end, and at the end of one whose states have all other places taken.
  void AddSnapshots(PrefillRequest& request) {
    for (const auto& [sequence, boundary] : {std::pair(0, 3), std::pair(0, 19), std::pair(2, 38), std::pair(2, 38)}) {
      request.snapshots.push_back(
          {.sequence = sequence, .boundary = boundary, .key = keys[request.snapshots.size()], .auxiliary = "1234567"});
    }
  }

  absl::Status Unary(const PrefillRequest& request) { return RunUnary(world, session, problem, request).status(); }

  absl::Status Streamed(const PrefillRequest& request) {
    std::vector<Feed> more;
    if (request.auxiliary_state.present) {
      more.push_back({.tensor = StreamTensor::kAuxiliary,
                      .data = auxiliary.data(),
                      .size = static_cast<std::int64_t>(auxiliary.size())});
    }
    return RunStreamed(world, session, problem, request, 1, 50, more).status();
  }

  const Problem problem = SmallProblem();
  const std::vector<std::string> keys = {KeyOf("a"), KeyOf("b"), KeyOf("c"), KeyOf("d")};
  std::vector<std::byte> auxiliary{3 * kAuxiliary, std::byte{9}};
  std::vector<std::int64_t> auxiliary_shape = {3, kAuxiliary};
  World world;
  std::shared_ptr<cache::Session> session;
  std::int64_t snapshot_bytes = 0;
  std::vector<std::unique_ptr<DeviceCaller>> callers;
};

struct KindOfCall {
  std::string name;
  std::function<absl::Status(Scene&)> run;
  bool takes_slots = true;
  bool in_device_memory = false;
};

absl::Status AcquireAnew(Scene& scene) {
  Release(scene.world, scene.session, {1}).IgnoreError();  // after a failure it is free already
  const absl::Status acquired = Acquire(scene.world, scene.session, 1).status();
  const cache::SlotTable::Counts counts = scene.session->cache()->slots().counts();
  EXPECT_EQ(counts.free, acquired.ok() ? 0 : 1);
  EXPECT_EQ(counts.held + counts.free, scene.session->cache()->geometry().slots);
  return acquired;
}

absl::Status WriteSlots(Scene& scene) {
  const auto size = static_cast<std::size_t>(scene.session->cache()->geometry().state_bytes());
  return Write(scene.world, scene.session, {.slots = {1}, .layers = {0}}, {},
               std::vector<std::byte>(size, std::byte{1}), nullptr);
}

/// Brings a copy of the snapshot that there is, as a client would who has exported it.
absl::Status WriteSnapshot(Scene& scene) {
  const cache::SnapshotSpace space = SpaceOf(*scene.session);
  const absl::StatusOr<std::shared_ptr<StagingBuffer>> memory = scene.world.engine->Stage(space.snapshot_bytes());
  if (!memory.ok()) return memory.status();
  std::memset((*memory)->data(), 1, static_cast<std::size_t>(space.snapshot_bytes()));
  SnapshotContents contents{.position = 5, .parts = {{}}, .owner = *memory};
  contents.parts[0].state = {(*memory)->data(), static_cast<std::size_t>(space.state_bytes())};
  contents.parts[0].auxiliary = {(*memory)->data() + space.state_bytes(), static_cast<std::size_t>(kAuxiliary)};
  return Complete<absl::StatusOr<cache::SnapshotOutcome>>([&](OutcomeDone done) {
           return scene.world.engine->WriteSnapshot(space, KeyOf("written"), std::move(contents), std::move(done));
         })
      .status();
}

absl::Status RunWithDoneFlag(Scene& scene, DeviceCaller& caller) {
  caller.SetDoneFlag(1);
  caller.Start();
  if (!caller.request().check_finite) scene.LetGoOn();  // it has been launched, and nobody waits for it
  absl::Status status = caller.Take().status();
  if (!absl::IsUnavailable(status)) {
    EXPECT_EQ(caller.flag(), status.ok() ? 1U : 0U);
  }
  return status;
}

std::vector<KindOfCall> KindsOfCalls() {
  return {
      {"unary prefill",
       [](Scene& scene) {
         PrefillRequest request = RequestOf(scene.problem, TensorTransport::kInline);
         request.natural_decay = true;
         return scene.Unary(request);
       }},
      {"unary prefill with all there is",
       [](Scene& scene) {
         PrefillRequest request = scene.Request(TensorTransport::kInline);
         request.check_finite = true;
         request.natural_decay = true;
         scene.AddSnapshots(request);
         return scene.Unary(request);
       }},
      {"streamed prefill",
       [](Scene& scene) {
         PrefillRequest request = scene.Request(TensorTransport::kStream);
         request.check_finite = true;
         scene.AddSnapshots(request);
         return scene.Streamed(request);
       }},
      {"streamed prefill in place",
       [](Scene& scene) {
         PrefillRequest request = scene.Request(TensorTransport::kStream);
         static const std::vector<std::int64_t> kShort = {0, 1, 1, 2};
         request.cu_seqlens = kShort;  // the rest of the rows is ignored
         request.save_new_value = false;
         return scene.Streamed(request);
       }},
      {"acquisition", AcquireAnew},
      {"reset",
       [](Scene& scene) {
         return Reset(scene.world, scene.session, {0, 2});
       }},
      {"copies in a circle",
       [](Scene& scene) {
         return Copy(scene.world, scene.session, {{0, {1}}, {2, {0}}, {1, {2}}});
       }},
      {"reading slots",
       [](Scene& scene) {
         return Read(scene.world, scene.session, {.slots = {0, 2}}).status;
       }},
      {"writing slots", WriteSlots},
      {"saving",
       [](Scene& scene) {
         return Save(scene.world, scene.session, {{.slot = 0, .key = KeyOf("a")}, {.slot = 2, .key = KeyOf("b")}})
             .status();
       }},
      {"restoring",
       [](Scene& scene) {
         return Restore(scene.world, scene.session, {{.key = KeyOf("kept"), .slots = {0, 2}}}).status();
       }},
      {"reading a snapshot",
       [](Scene& scene) { return ReadSnapshot(scene.world, *scene.session, KeyOf("kept")).status(); },
       /*takes_slots=*/false},
      {"writing a snapshot", WriteSnapshot, /*takes_slots=*/false},
      {"prefill with a done event", [](Scene& scene) { return scene.NewCaller().Run().status(); },
       /*takes_slots=*/true, /*in_device_memory=*/true},
      {"prefill with a ready event and a done event",
       [](Scene& scene) {
         DeviceCaller& caller = scene.NewCaller();
         void* const ready = scene.world.device->MakeEvent(false);
         caller.SetReadyEvent(ready);
         caller.Start();
         scene.world.device->Happen(ready);
         return caller.Take().status();
       },
       /*takes_slots=*/true, /*in_device_memory=*/true},
      {"prefill with a done flag", [](Scene& scene) { return RunWithDoneFlag(scene, scene.NewCaller()); },
       /*takes_slots=*/true, /*in_device_memory=*/true},
      {"checked prefill with natural decays and a done flag",
       [](Scene& scene) {
         DeviceCaller& caller = scene.NewCaller();
         caller.request().check_finite = true;
         caller.request().natural_decay = true;
         return RunWithDoneFlag(scene, caller);
       },
       /*takes_slots=*/true, /*in_device_memory=*/true},
  };
}

std::vector<std::tuple<std::size_t, Memory>> CallsInMemories() {
  const std::vector<KindOfCall> kinds = KindsOfCalls();
  std::vector<std::tuple<std::size_t, Memory>> calls;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    for (const Memory memory : {Memory::kUnified, Memory::kSeparate, Memory::kAsynchronous}) {
      if (memory == Memory::kAsynchronous || !kinds[i].in_device_memory) calls.emplace_back(i, memory);
    }
  }
  return calls;
}

class DeviceFault : public ::testing::TestWithParam<std::tuple<std::size_t, Memory>> {
 protected:
  /// Sets the world up, plans the fault at that turn of the operation, and hands both to `check`; until there is no
  /// such turn.
  void AtEachTurn(const std::function<void(test::FaultInjectingBackend&, Operation, int)>& plan,
                  const std::function<void(Scene&, Operation, const absl::Status&)>& check) {
    std::int64_t faults = 0;
    for (const Operation operation : kAllOperations) {
      for (int turn = 0; turn < 100 && !HasFailure(); ++turn) {
        SCOPED_TRACE(::testing::Message() << "operation " << static_cast<int>(operation) << ", turn " << turn);
        Scene scene(memory());
        const std::int64_t calls = scene.world.backend.calls(operation);
        plan(scene.world.backend, operation, turn);
        const absl::Status status = kind().run(scene);
        scene.Settle();
        if (scene.world.backend.calls(operation) - calls <= turn) {
          EXPECT_EQ(status, absl::OkStatus());
          EXPECT_EQ(Fingerprint(*scene.session->cache()), after());
          break;
        }
        ++faults;
        check(scene, operation, status);
      }
    }
    EXPECT_GT(faults, 0);
  }

  const KindOfCall& kind() const { return kinds_[std::get<0>(GetParam())]; }
  Memory memory() const { return std::get<1>(GetParam()); }

  /// What there is without the call.
  std::size_t before() {
    if (!before_.has_value()) {
      Scene scene(memory());
      scene.Settle();
      before_ = Fingerprint(*scene.session->cache());
    }
    return *before_;
  }

  /// What the call leaves when nothing fails.
  std::size_t after() {
    if (!after_.has_value()) {
      Scene scene(memory());
      const std::int64_t streams = scene.world.backend.calls(Operation::kCreateStream);
      EXPECT_EQ(kind().run(scene), absl::OkStatus());
      scene.Settle();
      EXPECT_EQ(scene.world.backend.calls(Operation::kCreateStream), streams) << "nothing of a call is left to fail";
      EXPECT_EQ(scene.world.backend.calls(Operation::kAwait) > 0,
                memory() == Memory::kAsynchronous && kind().takes_slots);
      after_ = Fingerprint(*scene.session->cache());
    }
    return *after_;
  }

 private:
  const std::vector<KindOfCall> kinds_ = KindsOfCalls();
  std::optional<std::size_t> before_;
  std::optional<std::size_t> after_;
};

TEST_P(DeviceFault, AnErrorChangesNothing) {
  for (const absl::Status& error : {absl::ResourceExhaustedError("injected"), absl::InternalError("injected")}) {
    SCOPED_TRACE(error);
    AtEachTurn([&](test::FaultInjectingBackend& backend, Operation operation,
                   int turn) { backend.FailAfter(operation, turn, error); },
               [&](Scene& scene, Operation operation, const absl::Status& status) {
                 if (status.ok()) {  // snapshots that found no memory, and what nobody waits for any more
                   EXPECT_EQ(Fingerprint(*scene.session->cache()), after());
                   return;
                 }
                 if (absl::IsUnavailable(status)) {
                   // Behind work that cannot be taken back. On the CPU there is none.
                   EXPECT_TRUE(memory() != Memory::kUnified || operation == Operation::kSynchronize);
                   EXPECT_GT(scene.world.losses.load(), 0);
                   return;
                 }
                 EXPECT_EQ(status.code(), error.code());
                 EXPECT_EQ(scene.world.losses.load(), 0);
                 if (kind().name != "acquisition") {
                   EXPECT_EQ(Fingerprint(*scene.session->cache()), before());
                 }
                 EXPECT_EQ(scene.world.store->tiers()[0].used, scene.snapshot_bytes);
                 EXPECT_EQ(kind().run(scene), absl::OkStatus());  // and the slots are usable
                 scene.Settle();
                 EXPECT_EQ(Fingerprint(*scene.session->cache()), after());
               });
  }
}

TEST_P(DeviceFault, ALossIsReportedAndLeavesNothingUnderWay) {
  AtEachTurn([](test::FaultInjectingBackend& backend, Operation operation,
                int turn) { backend.FailForEverAfter(operation, turn, absl::UnavailableError("off the bus")); },
             [&](Scene& scene, Operation /*operation*/, const absl::Status& status) {
               // It may have succeeded before: nobody waits for the end of a wait for what is not needed any more.
               EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
               EXPECT_GT(scene.world.losses.load(), 0);
               const absl::Status again = kind().run(scene);
               EXPECT_TRUE(again.ok() || absl::IsUnavailable(again)) << again;
               scene.Settle();
             });
}

INSTANTIATE_TEST_SUITE_P(AllKindsOfCalls, DeviceFault, ::testing::ValuesIn(CallsInMemories()),
                         [](const auto& instance) {
                           const Memory memory = std::get<1>(instance.param);
                           std::string name = KindsOfCalls()[std::get<0>(instance.param)].name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           if (memory == Memory::kUnified) return name + "_on_the_host";
                           return name + (memory == Memory::kSeparate ? "_on_a_device" : "_behind_work_under_way");
                         });

/// Work that nobody waits for is asked about by a thread of the engine's, which may be told of an error at any time.
TEST(QueryFault, IsTheLossOfTheDeviceAndTheFailureOfWhoIsNotAnswered) {
  enum class When : std::uint8_t { kAtOnce, kAfterAWhile, kWhenItIsComplete };
  for (const bool flagged : {false, true}) {
    for (const bool for_ever : {false, true}) {
      for (const When when : {When::kAtOnce, When::kAfterAWhile, When::kWhenItIsComplete}) {
        SCOPED_TRACE(::testing::Message()
                     << (flagged ? "flagged, " : "") << (for_ever ? "for ever, " : "") << static_cast<int>(when));
        Scene scene(Memory::kAsynchronous);
        scene.Settle();
        test::FaultInjectingBackend& backend = scene.world.backend;
        DeviceCaller& caller = scene.NewCaller();
        if (flagged) caller.SetDoneFlag(1);
        scene.world.device->Hold();
        const int passed = when == When::kAfterAWhile ? 3 : 0;
        if (when == When::kWhenItIsComplete) backend.BeforeEach(Operation::kQuery, [&scene] { scene.LetGoOn(); });
        if (for_ever) {
          backend.FailForEverAfter(Operation::kQuery, passed, absl::UnavailableError("off the bus"));
        } else {
          backend.FailAfter(Operation::kQuery, passed, absl::InternalError("illegal address"));
        }
        const absl::Status status = caller.Run().status();
        EXPECT_EQ(status.code(), flagged ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk) << status;
        EXPECT_TRUE(test::Eventually([&scene] { return scene.world.losses.load() > 0; }));
        EXPECT_EQ(caller.flag(), flagged && when == When::kWhenItIsComplete ? 1U : 0U);
        scene.Settle();
        EXPECT_EQ(scene.NewCaller().Run().status().code(),
                  for_ever ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk);
        scene.Settle();
      }
    }
  }
}

TEST(StreamFault, ARefusedStreamFailsTheStartOfAnEngine) {
  World world;
  const absl::Status error = absl::InternalError("injected");
  int turn = 0;
  for (; turn < 100; ++turn) {
    const std::int64_t calls = world.backend.calls(Operation::kCreateStream);
    world.backend.FailAfter(Operation::kCreateStream, turn, error);
    const auto engine = Engine::Create(world.reporting, {.workers = 3}, nullptr, [](const absl::Status&) {});
    if (world.backend.calls(Operation::kCreateStream) - calls <= turn) {
      EXPECT_EQ(engine.status(), absl::OkStatus());
      break;
    }
    EXPECT_EQ(engine.status(), error);
  }
  EXPECT_GT(turn, 3);
  EXPECT_EQ(world.losses.load(), 0);
}

TEST(StreamFault, NoFailureKeepsAStream) {
  constexpr int kMoreThanThereAreStreams = 20;
  for (const Operation operation : {Operation::kAwait, Operation::kRecord, Operation::kQuery}) {
    SCOPED_TRACE(static_cast<int>(operation));
    Scene scene(Memory::kAsynchronous);
    for (int i = 0; i < kMoreThanThereAreStreams; ++i) {
      scene.world.backend.FailAfter(operation, 0, absl::InternalError("injected"));
      scene.NewCaller({10}, {0}).Run().IgnoreError();
      scene.Settle();
      scene.callers.clear();
      scene.LeaveWorkUnderWay();
    }
    DeviceCaller& caller = scene.NewCaller();
    EXPECT_EQ(caller.Run().status(), absl::OkStatus());
    EXPECT_FALSE(caller.IsDone()) << "it has found no stream of its own, and has been waited for";
    scene.Settle();
  }
}

}  // namespace
}  // namespace gdpcache::engine
