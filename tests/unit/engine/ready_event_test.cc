#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/unit/engine/device_caller.h"
#include "tests/unit/engine/engine_world.h"
#include "tests/unit/engine/two_callers.h"

/// Prefills that have a ready event wait for it, alone.
namespace gdpcache::engine {
namespace {

TEST(ReadyEvent, IsWaitedForByTheCallAloneWhichTakesItsPlaceThen) {
  TwoCallers scene;
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
  TwoCallers scene;
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
  TwoCallers scene;
  scene.first->SetReadyEvent(scene.world.device->MakeEvent(true));
  scene.world.device->Hold();
  scene.first->Start();
  EXPECT_TRUE(scene.first->IsAnswered()) << "on this thread";
  EXPECT_EQ(scene.first->Take().status(), absl::OkStatus());
  scene.world.device->Resume();
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(ReadyEvent, OfACallThatTheHostHasToCompleteIsWaitedForToo) {
  TwoCallers scene;
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
  TwoCallers scene(options);
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
  TwoCallers scene;
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
  EXPECT_EQ(scene.cache().slots().counts().free, TwoCallers::kSlots);
}

TEST(ReadyEvent, OfACallThatFailsLetsGoOfItsRegionsOnTheThreadForIt) {
  TwoCallers scene({.workers = 1, .max_ready_wait = absl::Milliseconds(20)});
  scene.first->SetReadyEvent(scene.world.device->MakeEvent(false));
  LastUse last_use(scene.world, *scene.first);
  scene.first->Make();
  last_use.BeginsNow();
  scene.first->Start();
  EXPECT_EQ(scene.first->Take().status().code(), absl::StatusCode::kDeadlineExceeded);
  last_use.ExpectThatItEndsOnTheThreadForIt();
  EXPECT_TRUE(scene.NothingUnderWay());
}

TEST(ReadyEvent, OfACallOfManySequencesHasItLaunchedByAWorker) {
  TwoCallers scene;
  constexpr std::size_t kMany = 600;
  const auto problem_of = [](std::size_t sequences) {
    std::vector<std::int64_t> lengths(sequences, 0);
    Slots slots(sequences, -1);
    lengths[0] = 20;
    slots[0] = 1;
    return Sequences(lengths, slots, 3);
  };
  DeviceCaller few(scene.world, scene.session, problem_of(kMany / 2));
  DeviceCaller many(scene.world, scene.session, problem_of(kMany));
  ASSERT_EQ(scene.first->Run().status(), absl::OkStatus());
  ASSERT_TRUE(scene.NothingUnderWay());  // the thread that looks is known now
  for (const auto& [caller, by_looker] : {std::pair(&few, 1), std::pair(&many, 1)}) {
    void* const ready = scene.world.device->MakeEvent(false);
    caller->SetReadyEvent(ready);
    caller->Start();
    scene.world.device->Happen(ready);
    EXPECT_EQ(caller->Take().status(), absl::OkStatus());
    EXPECT_EQ(scene.world.device->launches_by_lookers(), by_looker);
    ASSERT_TRUE(scene.NothingUnderWay());
  }
}

}  // namespace
}  // namespace gdpcache::engine
