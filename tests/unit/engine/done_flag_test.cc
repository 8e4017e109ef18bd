#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/eventually.h"
#include "tests/unit/engine/device_caller.h"
#include "tests/unit/engine/engine_world.h"
#include "tests/unit/engine/two_callers.h"

/// Prefills whose tensors are all in the device's memory and that have a done flag: what comes next on their slots may
/// be launched behind them, as with a done event, but they are answered when the flag is set.
namespace gdpcache::engine {
namespace {

TEST(DoneFlag, IsSetBehindTheWorkWithTheAnswerWhileTheSlotsAreLaterCallsFromTheLaunchOn) {
  TwoCallers in_turn;
  ASSERT_TRUE(in_turn.first->Run().ok() && in_turn.NothingUnderWay());
  ASSERT_TRUE(in_turn.second->Run().ok() && in_turn.NothingUnderWay());

  TwoCallers scene;
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
  TwoCallers in_turn;
  ASSERT_TRUE(in_turn.first->Run().ok() && in_turn.NothingUnderWay());
  ASSERT_TRUE(in_turn.second->Run().ok() && in_turn.NothingUnderWay());

  TwoCallers scene;
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
  TwoCallers scene(options);
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
  TwoCallers scene;
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
  TwoCallers scene;
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
  TwoCallers scene;
  scene.world.device->RefuseValues();
  scene.first->SetDoneFlag(7);
  EXPECT_EQ(scene.first->Run().value().positions, Slots{100});
  EXPECT_EQ(scene.first->flag(), 7);

  TwoCallers checked;
  checked.first->SetDoneFlag(8);
  checked.first->request().check_finite = true;
  EXPECT_EQ(checked.first->Run().value().positions, Slots{100});
  EXPECT_EQ(checked.first->flag(), 8);

  TwoCallers without_event;
  without_event.world.backend.FailAfter(Operation::kRecord, 0, absl::ResourceExhaustedError("no events"));
  without_event.first->SetDoneFlag(9);
  EXPECT_EQ(without_event.first->Run().value().positions, Slots{100});
  EXPECT_EQ(without_event.first->flag(), 9);
  EXPECT_TRUE(scene.NothingUnderWay() && checked.NothingUnderWay() && without_event.NothingUnderWay());
}

TEST(DoneFlag, BesideADoneEventComesWithTheLateAnswer) {
  TwoCallers scene;
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
  TwoCallers scene({.workers = 2});
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
  TwoCallers scene;
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

}  // namespace
}  // namespace gdpcache::engine
