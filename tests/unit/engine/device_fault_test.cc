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
#include "tests/unit/engine/engine_world.h"

/// Every operation of the backend fails once at each of its turns in each kind of call, and the device is lost there.
/// Whatever it is, a call that fails has changed nothing, nothing stays behind, and the next call is served; unless the
/// device is lost, which is reported.
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
    before = Fingerprint(*session->cache());
    snapshot_bytes = world.store->tiers()[0].used;
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
  std::size_t before = 0;
  std::int64_t snapshot_bytes = 0;
};

struct KindOfCall {
  std::string name;
  std::function<absl::Status(Scene&)> run;
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
         return Read(scene.world, scene.session, {.slots = {0, 2}, .layers = {}}).status;
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
       [](Scene& scene) { return ReadSnapshot(scene.world, *scene.session, KeyOf("kept")).status(); }},
      {"writing a snapshot", WriteSnapshot},
  };
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
        if (scene.world.backend.calls(operation) - calls <= turn) {
          EXPECT_EQ(status, absl::OkStatus());
          EXPECT_EQ(Fingerprint(*scene.session->cache()), after());
          break;
        }
        ++faults;
        EXPECT_TRUE(NothingUnderWay(scene.world));
        check(scene, operation, status);
      }
    }
    EXPECT_GT(faults, 0);
  }

  const KindOfCall& kind() const { return kinds_[std::get<0>(GetParam())]; }
  Memory memory() const { return std::get<1>(GetParam()); }

  /// What the call leaves when nothing fails.
  std::size_t after() {
    if (!after_.has_value()) {
      Scene scene(memory());
      EXPECT_EQ(kind().run(scene), absl::OkStatus());
      after_ = Fingerprint(*scene.session->cache());
    }
    return *after_;
  }

 private:
  const std::vector<KindOfCall> kinds_ = KindsOfCalls();
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
                   EXPECT_TRUE(memory() == Memory::kSeparate || operation == Operation::kSynchronize);
                   EXPECT_GT(scene.world.losses.load(), 0);
                   return;
                 }
                 EXPECT_EQ(status.code(), error.code());
                 EXPECT_EQ(scene.world.losses.load(), 0);
                 if (kind().name != "acquisition") {
                   EXPECT_EQ(Fingerprint(*scene.session->cache()), scene.before);
                 }
                 EXPECT_EQ(scene.world.store->tiers()[0].used, scene.snapshot_bytes);
                 EXPECT_EQ(kind().run(scene), absl::OkStatus());  // and the slots are usable
                 EXPECT_EQ(Fingerprint(*scene.session->cache()), after());
                 EXPECT_TRUE(NothingUnderWay(scene.world));
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
               EXPECT_TRUE(NothingUnderWay(scene.world));
             });
}

INSTANTIATE_TEST_SUITE_P(AllKindsOfCalls, DeviceFault,
                         ::testing::Combine(::testing::Range<std::size_t>(0, KindsOfCalls().size()),
                                            ::testing::Values(Memory::kUnified, Memory::kSeparate)),
                         [](const auto& instance) {
                           std::string name = KindsOfCalls()[std::get<0>(instance.param)].name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name +
                                  (std::get<1>(instance.param) == Memory::kUnified ? "_on_the_host" : "_on_a_device");
                         });

}  // namespace
}  // namespace gdpcache::engine
