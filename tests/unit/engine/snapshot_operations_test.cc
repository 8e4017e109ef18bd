#include "server/engine/snapshot_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/engine/slot_memory.h"
#include "tests/unit/engine/engine_world.h"
#include "tests/unit/engine/test_tiers.h"

namespace gdpcache::engine {
namespace {

using cache::SnapshotResult;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr cache::Geometry kGeometry = {.layers = 3,
                                       .slots = 6,
                                       .heads = 2,
                                       .key_dim = 4,
                                       .value_dim = 3,
                                       .num_householder = 1,
                                       .state_dtype = kernels::DataType::kFloat32,
                                       .auxiliary_bytes = 5};

/// Different bytes in every slot and layer; slot s stands at position 100 * s.
void Fill(cache::Cache& cache) {
  for (std::int64_t layer = 0; layer < cache.geometry().layers; ++layer) {
    for (std::int64_t slot = 0; slot < cache.geometry().slots; ++slot) {
      const auto mark = static_cast<int>(layer * 20 + slot + 1);
      std::memset(test::SeparateMemoryBackend::HostAddress(cache.pool().State(layer, slot).data), mark,
                  cache.geometry().state_bytes());
      LoadAuxiliary(cache, layer, slot, std::string(5, static_cast<char>(mark + 100)));
      cache.slots().SetPosition(layer, slot, 100 * slot);
    }
  }
}

/// A session that holds all slots of a filled cache.
struct Scene {
  explicit Scene(Memory memory = Memory::kUnified, const Tiers& tiers = DeviceTier()) : world({}, memory, tiers) {
    session = world.OpenSession(kGeometry);
    Fill(cache());
  }

  cache::Cache& cache() const { return *session->cache(); }
  Kept Content(std::int64_t slot) const { return ContentOf(cache(), slot); }
  auto Save(std::vector<SlotSaveRequest> saves) const { return engine::Save(world, session, std::move(saves)); }
  auto Restore(std::vector<SlotRestoreRequest> restores) const {
    return engine::Restore(world, session, std::move(restores));
  }
  auto Read(const std::string& key) const { return ReadSnapshot(world, *session, key); }
  std::int64_t kept_bytes() const { return world.store->tiers().front().used; }

  World world;
  std::shared_ptr<cache::Session> session;
};

class SlotSnapshots : public ::testing::TestWithParam<Memory> {};
INSTANTIATE_TEST_SUITE_P(Memories, SlotSnapshots, ::testing::Values(Memory::kUnified, Memory::kSeparate));

TEST_P(SlotSnapshots, AreSavedAndRestoredWholeInOneLaunchEach) {
  const Scene scene(GetParam());
  const Kept second = scene.Content(2);
  const Kept fifth = scene.Content(5);
  std::int64_t copies = scene.world.backend.calls(Operation::kCopyBytes);
  const auto saved = scene.Save({{2, KeyOf("2")}, {5, KeyOf("5")}, {2, KeyOf("2 again")}});
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(scene.world.backend.calls(Operation::kCopyBytes), copies + 1);
  for (const cache::SnapshotOutcome& outcome : *saved) EXPECT_EQ(outcome.result, SnapshotResult::kStored);
  EXPECT_EQ(saved->at(1).position, 500);
  for (const std::string name : {"2", "2 again"}) {
    const auto kept = scene.Read(KeyOf(name));
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(*kept, second);
  }

  const Kept untouched = scene.Content(3);
  copies = scene.world.backend.calls(Operation::kCopyBytes);
  const auto restored = scene.Restore({{KeyOf("5"), {0, 2}}, {KeyOf("2"), {5}}, {KeyOf("2 again"), {}}});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(scene.world.backend.calls(Operation::kCopyBytes), copies + 1);
  EXPECT_THAT(*restored, ElementsAre(500, 200, 200));
  EXPECT_EQ(scene.Content(0), fifth);
  EXPECT_EQ(scene.Content(2), fifth);
  EXPECT_EQ(scene.Content(5), second);
  EXPECT_EQ(scene.Content(3), untouched);
}

TEST(SaveSnapshots, AKeyThatIsThereKeepsItsSnapshot) {
  const Scene scene;
  ASSERT_TRUE(scene.Save({{2, KeyOf("a")}}).ok());
  const std::int64_t copies = scene.world.backend.calls(Operation::kCopyBytes);
  const auto again = scene.Save({{3, KeyOf("a")}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->at(0).result, SnapshotResult::kPresent);
  EXPECT_EQ(again->at(0).position, 200);
  EXPECT_EQ(scene.world.backend.calls(Operation::kCopyBytes), copies);
  EXPECT_EQ(scene.Read(KeyOf("a")).value(), scene.Content(2));
}

TEST(SaveSnapshots, LayersAtDifferentPositionsAreRefusedAndNoneIsSaved) {
  const Scene scene;
  scene.cache().slots().SetPosition(2, 4, 7);
  const auto saved = scene.Save({{1, KeyOf("1")}, {4, KeyOf("4")}});
  EXPECT_EQ(saved.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(saved.status().message(), "saves[1].slot is 4, whose layer 0 is at position 400 and layer 2 at 7");
  EXPECT_EQ(scene.Read(KeyOf("1")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(scene.kept_bytes(), 0);
}

TEST(SaveSnapshots, WantOfSpaceFailsOnlyTheSavesConcerned) {
  const cache::SnapshotSpace space = cache::SnapshotSpace::Of("", "", kGeometry);
  const Scene scene(Memory::kUnified, DeviceTier(cache::MemoryTier::Footprint(space, kGeometry.layers)));
  const auto saved = scene.Save({{1, KeyOf("1")}, {2, KeyOf("2")}});
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->at(0).result, SnapshotResult::kStored);
  EXPECT_EQ(saved->at(1).result, SnapshotResult::kNoSpace);
  EXPECT_NE(saved->at(1).message, "");
  // The store makes room for the next save of that size, so the first may have gone already; else it is whole.
  const auto first = scene.Read(KeyOf("1"));
  EXPECT_THAT(first.status().code(), AnyOf(absl::StatusCode::kOk, absl::StatusCode::kNotFound));
  if (first.ok()) {
    EXPECT_EQ(*first, scene.Content(1));
  }
}

TEST(SaveSnapshots, SlotsMustBeHeldAndKeysBeKeysAndDistinct) {
  Scene scene;
  EXPECT_EQ(scene.Save({{6, KeyOf("a")}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scene.Save({{1, "short"}}).status().message(), "saves[0].key has 5 bytes; a key has 16 to 64");
  EXPECT_THAT(scene.Save({{1, KeyOf("a")}, {2, KeyOf("a")}}).status().message(),
              HasSubstr("as is saves[0].key; keys must be distinct"));
  const auto stranger = scene.world.catalog.OpenSession(scene.cache().spec().name, absl::ZeroDuration(), "").value();
  EXPECT_EQ(Save(scene.world, stranger, {{1, KeyOf("a")}}).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(scene.kept_bytes(), 0);
}

TEST(RestoreSnapshots, AMissingKeyIsNamedAndNothingChanges) {
  const Scene scene;
  ASSERT_TRUE(scene.Save({{2, KeyOf("there")}}).ok());
  const std::size_t before = Fingerprint(scene.cache());
  const auto restored = scene.Restore({{KeyOf("there"), {0}}, {KeyOf("missing"), {1}}});
  EXPECT_EQ(restored.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(restored.status().message(),
              HasSubstr(absl::StrCat("restores[1].key is ", absl::BytesToHexString(KeyOf("missing")))));
  EXPECT_EQ(Fingerprint(scene.cache()), before);
}

TEST(RestoreSnapshots, WhatAnotherTenantKeepsIsNotThere) {
  Scene scene;
  ASSERT_TRUE(scene.Save({{2, KeyOf("a")}}).ok());
  const auto other =
      scene.world.catalog.OpenSession(scene.cache().spec().name, absl::ZeroDuration(), "", "another tenant").value();
  EXPECT_EQ(Restore(scene.world, other, {{KeyOf("a"), {}}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadSnapshot(scene.world, *other, KeyOf("a")).status().code(), absl::StatusCode::kNotFound);
}

TEST(RestoreSnapshots, PositionsThatCouldNotBeCountedOnAreRefused) {
  const Scene scene;
  for (std::int64_t layer = 0; layer < kGeometry.layers; ++layer) {
    scene.cache().slots().SetPosition(layer, 2, kMaxPosition + 1);
  }
  ASSERT_TRUE(scene.Save({{2, KeyOf("a")}}).ok());
  const std::size_t before = Fingerprint(scene.cache());
  const auto restored = scene.Restore({{KeyOf("a"), {0}}});
  EXPECT_EQ(restored.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(restored.status().message(), HasSubstr("is 4611686018427387905; a slot's may be 4611686018427387904"));
  EXPECT_EQ(Fingerprint(scene.cache()), before);
}

TEST(RestoreSnapshots, SlotsMustBeHeldAndDistinct) {
  Scene scene;
  ASSERT_TRUE(scene.Save({{2, KeyOf("a")}}).ok());
  EXPECT_EQ(scene.Restore({{KeyOf("a"), {0, 1}}, {KeyOf("a"), {2, 0}}}).status().message(),
            "restores[1].slots[1] is 0, as is restores[0].slots[0]; slots must be distinct");
  EXPECT_EQ(scene.Restore({{KeyOf("a"), {6}}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scene.Restore({{KeyOf("a"), {0, 1, 2}}, {KeyOf("a"), {6, 7, 8, 9}}}).status().message(),
            "restores name 7 slots; the cache has 6");
  const auto stranger = scene.world.catalog.OpenSession(scene.cache().spec().name, absl::ZeroDuration(), "").value();
  const std::size_t before = Fingerprint(scene.cache());
  EXPECT_EQ(Restore(scene.world, stranger, {{KeyOf("a"), {1}}}).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Fingerprint(scene.cache()), before);
}

TEST(RestoreSnapshots, MoreThanFitIntoMemoryTogetherAreRefusedAndNothingChanges) {
  const std::int64_t snapshot =
      cache::MemoryTier::Footprint(cache::SnapshotSpace::Of("", "", kGeometry), kGeometry.layers);
  const Scene scene(Memory::kUnified, [snapshot](kernels::Backend& backend) {
    std::vector<cache::StoreTier> tiers;
    for (const cache::TierKind kind : {cache::TierKind::kDevice, cache::TierKind::kHost}) {
      tiers.push_back({std::make_unique<cache::MemoryTier>(backend, kind, 2 * snapshot), 0, 0});
    }
    constexpr std::int64_t kPlenty = std::int64_t{1} << 30;
    tiers.push_back({std::make_unique<test::FaultInjectingTier>(backend, kPlenty), kPlenty, kPlenty});
    return tiers;
  });
  std::vector<SlotRestoreRequest> restores;
  for (std::int64_t slot = 0; slot < 5; ++slot) {
    restores.push_back({KeyOf(absl::StrCat(slot)), {slot}});
    ASSERT_EQ(scene.Save({{slot, restores.back().key}}).value()[0].result, SnapshotResult::kStored);
    WaitUntilAllIn(scene.world, scene.session, cache::TierKind::kDisk);
  }
  const std::size_t before = Fingerprint(scene.cache());
  EXPECT_EQ(scene.Restore(restores).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Fingerprint(scene.cache()), before);
  restores.resize(1);
  EXPECT_THAT(scene.Restore(restores).value(), ElementsAre(0));
}

TEST(RestoreSnapshots, DamagedOnesAreDataLossAndNothingChanges) {
  const Scene scene(Memory::kUnified, TiersDownTo(cache::TierKind::kDisk, [](test::FaultInjectingTier& disk) {
                      disk.FailAfter(test::FaultInjectingTier::Operation::kLoad, 0,
                                     absl::DataLossError("a bit has flipped"), /*repeats=*/true);
                    }));
  ASSERT_TRUE(scene.Save({{2, KeyOf("a")}}).ok());
  WaitUntilAllIn(scene.world, scene.session, cache::TierKind::kDisk);
  const std::size_t before = Fingerprint(scene.cache());
  const auto restored = scene.Restore({{KeyOf("a"), {0}}});
  EXPECT_EQ(restored.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(restored.status().message(), HasSubstr(absl::BytesToHexString(KeyOf("a"))));
  EXPECT_EQ(Fingerprint(scene.cache()), before);
}

/// A snapshot of slot 2 whose loading is held up.
struct Loading {
  Loading()
      : scene(Memory::kUnified, TiersDownTo(cache::TierKind::kDisk, [this](test::FaultInjectingTier& disk) {
                disk.BeforeEach(test::FaultInjectingTier::Operation::kLoad, [this] {
                  if (!first.exchange(false)) return;
                  entered.Set(true);
                  leave.Take();
                });
              })) {
    EXPECT_TRUE(scene.Save({{2, KeyOf("a")}}).ok());
    WaitUntilAllIn(scene.world, scene.session, cache::TierKind::kDisk);
    call = *scene.world.engine->RestoreSnapshots({.session = scene.session}, {{KeyOf("a"), {0, 1}}},
                                                 [this](auto positions) { outcome.Set(std::move(positions)); });
    content = scene.Content(2);
    before = Fingerprint(scene.cache());
  }
  void Start() {
    call->Start();
    entered.Take();
  }

  std::atomic<bool> first = true;
  Outcome<bool> entered;
  Outcome<bool> leave;
  Outcome<absl::StatusOr<std::vector<std::int64_t>>> outcome;
  Scene scene;
  std::shared_ptr<Call> call;
  Kept content;
  std::size_t before = 0;
};

TEST(RestoreSnapshots, OthersUseTheSlotsWhileASnapshotIsLoaded) {
  Loading loading;
  loading.Start();
  EXPECT_EQ(Reset(loading.scene.world, loading.scene.session, {0}), absl::OkStatus());
  EXPECT_FALSE(loading.outcome.IsSet());
  loading.leave.Set(true);
  EXPECT_THAT(loading.outcome.Take().value(), ElementsAre(200));
  EXPECT_EQ(loading.scene.Content(0), loading.content);
  EXPECT_EQ(loading.scene.Content(1), loading.content);
}

TEST(RestoreSnapshots, CancelledWhileASnapshotIsLoadedEndAtOnceAndChangeNothing) {
  Loading loading;
  loading.Start();
  loading.call->Cancel(absl::CancelledError("no more"));
  EXPECT_EQ(loading.outcome.Take().status(), absl::CancelledError("no more"));
  loading.leave.Set(true);
  loading.scene.world.store->WaitUntilIdle();
  EXPECT_EQ(Fingerprint(loading.scene.cache()), loading.before);
  EXPECT_TRUE(loading.scene.Restore({{KeyOf("a"), {0}}}).ok());
}

TEST(RestoreSnapshots, EndWithTheirSessionWhileASnapshotIsLoaded) {
  Loading loading;
  loading.Start();
  Outcome<bool> closed;
  EXPECT_TRUE(loading.scene.world.catalog
                  .CloseSession(loading.scene.session->id(), cache::kDefaultTenant, [&closed] { closed.Set(true); })
                  .ok());
  EXPECT_EQ(loading.outcome.Take().status().code(), absl::StatusCode::kCancelled);
  closed.Take();
  loading.leave.Set(true);
  loading.scene.world.store->WaitUntilIdle();
  EXPECT_EQ(Fingerprint(loading.scene.cache()), loading.before);
}

TEST(RestoreSnapshots, CancelledBeforeTheirStartEndWhenTheyStart) {
  Loading loading;
  loading.leave.Set(true);
  loading.call->Cancel(absl::CancelledError("early"));
  EXPECT_FALSE(loading.outcome.IsSet());
  loading.call->Start();
  EXPECT_EQ(loading.outcome.Take().status(), absl::CancelledError("early"));
  EXPECT_EQ(Fingerprint(loading.scene.cache()), loading.before);
  loading.scene.world.store->WaitUntilIdle();
}

absl::StatusOr<cache::SnapshotOutcome> Write(const World& world, const cache::Session& session, const std::string& key,
                                             SnapshotContents contents) {
  return Complete<absl::StatusOr<cache::SnapshotOutcome>>([&](OutcomeDone done) {
    return world.engine->WriteSnapshot(SpaceOf(session), key, std::move(contents), std::move(done));
  });
}

/// Parts of the geometry in staging memory, filled with `byte`.
SnapshotContents Contents(const World& world, char byte, std::int64_t position) {
  const auto state = static_cast<std::size_t>(kGeometry.state_bytes());
  const std::size_t part = state + static_cast<std::size_t>(kGeometry.auxiliary_bytes);
  const auto buffer = world.engine->Stage(static_cast<std::int64_t>(part) * kGeometry.layers).value();
  std::memset(buffer->data(), byte, buffer->size());
  SnapshotContents contents{.position = position, .parts = {}, .owner = buffer};
  for (std::int64_t layer = 0; layer < kGeometry.layers; ++layer) {
    std::byte* place = buffer->data() + layer * static_cast<std::int64_t>(part);
    contents.parts.push_back({.state = {place, state}, .auxiliary = {place + state, part - state}});
  }
  return contents;
}

TEST_P(SlotSnapshots, ComeFromHostMemoryIntoSlotsAndBack) {
  const Scene scene(GetParam());
  const auto outcome = Write(scene.world, *scene.session, KeyOf("a"), Contents(scene.world, 'x', 77));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->result, SnapshotResult::kStored);
  EXPECT_EQ(scene.world.engine->staging().used(), 0);
  EXPECT_THAT(scene.Restore({{KeyOf("a"), {4}}}).value(), ElementsAre(77));
  const Kept content = scene.Content(4);
  EXPECT_EQ(content.states[2], std::string(kGeometry.state_bytes(), 'x'));
  EXPECT_EQ(content.auxiliary[2], "xxxxx");
  EXPECT_EQ(scene.Read(KeyOf("a")).value(), content);
  EXPECT_EQ(scene.world.engine->staging().used(), 0);

  const auto again = Write(scene.world, *scene.session, KeyOf("a"), Contents(scene.world, 'y', 78));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->result, SnapshotResult::kPresent);
  EXPECT_EQ(again->position, 77);
}

TEST(WriteSnapshot, RefusesWhatIsNoSnapshotOfTheSpace) {
  const Scene scene;
  SnapshotContents contents = Contents(scene.world, 'x', 1);
  contents.parts.pop_back();
  EXPECT_FALSE(Write(scene.world, *scene.session, KeyOf("a"), contents).ok());
  EXPECT_EQ(Write(scene.world, *scene.session, KeyOf("a"), Contents(scene.world, 'x', -1)).status().message(),
            "position is -1; it must be from 0 to 4611686018427387904");
  EXPECT_EQ(Write(scene.world, *scene.session, "short", Contents(scene.world, 'x', 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scene.kept_bytes(), 0);
}

TEST(ReadSnapshot, NeedsStagingMemory) {
  const Scene scene;
  ASSERT_TRUE(scene.Save({{2, KeyOf("a")}}).ok());
  const auto all = scene.world.engine->Stage(scene.world.engine->staging().budget());
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(scene.Read(KeyOf("a")).status().code(), absl::StatusCode::kResourceExhausted);
  (*all)->Reset();
  EXPECT_TRUE(scene.Read(KeyOf("a")).ok());
}

TEST(TransfersOfSnapshots, CancelledBeforeTheirStartEndWhenTheyStart) {
  const Scene scene;
  ASSERT_TRUE(scene.Save({{2, KeyOf("a")}}).ok());
  const std::int64_t kept = scene.kept_bytes();
  const auto space = SpaceOf(*scene.session);
  Outcome<absl::Status> read;
  const auto reader = *scene.world.engine->ReadSnapshot(
      space, KeyOf("a"), [&read](absl::StatusOr<SnapshotContents> contents) { read.Set(contents.status()); });
  reader->Cancel(absl::CancelledError("early"));
  reader->Start();
  EXPECT_EQ(read.Take(), absl::CancelledError("early"));
  Outcome<absl::Status> written;
  const auto writer = *scene.world.engine->WriteSnapshot(
      space, KeyOf("b"), Contents(scene.world, 'x', 1),
      [&written](absl::StatusOr<cache::SnapshotOutcome> outcome) { written.Set(outcome.status()); });
  writer->Cancel(absl::CancelledError("early"));
  writer->Start();
  EXPECT_EQ(written.Take(), absl::CancelledError("early"));
  EXPECT_EQ(scene.kept_bytes(), kept);
  EXPECT_EQ(scene.world.engine->staging().used(), 0);
}

TEST(Failure, AtAnyStageOfASnapshotOperationChangesNothing) {
  using Run = std::function<absl::Status(Scene&)>;
  const std::vector<Run> runs = {
      [](Scene& scene) {
        return scene.Save({{3, KeyOf("new")}, {4, KeyOf("newer")}}).status();
      },
      [](Scene& scene) {
        return scene.Restore({{KeyOf("old"), {3, 4}}}).status();
      },
      [](Scene& scene) { return scene.Read(KeyOf("old")).status(); },
      [](Scene& scene) {
        return Write(scene.world, *scene.session, KeyOf("new"), Contents(scene.world, 'x', 1)).status();
      },
  };
  for (std::size_t run = 0; run < runs.size(); ++run) {
    for (const Memory memory : {Memory::kUnified, Memory::kSeparate}) {
      for (int turn = 0; turn < 10; ++turn) {
        SCOPED_TRACE(::testing::Message() << "run " << run << ", turn " << turn);
        Scene scene(memory);
        ASSERT_TRUE(scene.Save({{2, KeyOf("old")}}).ok());
        const std::size_t before = Fingerprint(scene.cache());
        const std::int64_t kept = scene.kept_bytes();
        const std::int64_t calls = scene.world.backend.calls(Operation::kCopyBytes);
        const std::int64_t synchronized = scene.world.backend.calls(Operation::kSynchronize);
        scene.world.backend.FailAfter(Operation::kCopyBytes, turn, absl::ResourceExhaustedError("injected"));
        const absl::Status status = runs[run](scene);
        if (scene.world.backend.calls(Operation::kCopyBytes) - calls <= turn) {
          EXPECT_TRUE(status.ok()) << status;
          break;
        }
        EXPECT_EQ(status, absl::ResourceExhaustedError("injected"));
        EXPECT_EQ(Fingerprint(scene.cache()), before);
        EXPECT_EQ(scene.kept_bytes(), kept);
        // Nothing is under way any more in the memory that was given back.
        EXPECT_GT(scene.world.backend.calls(Operation::kSynchronize), synchronized + turn);
        EXPECT_EQ(scene.Read(KeyOf("new")).status().code(), absl::StatusCode::kNotFound);
        EXPECT_TRUE(runs[run](scene).ok());
      }
    }
  }
}

}  // namespace
}  // namespace gdpcache::engine
