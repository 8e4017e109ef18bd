#include "server/rpc/detached_calls.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace gdpcache::rpc {
namespace {

using Kind = DetachedCalls::Kind;

class DetachedCallsTest : public ::testing::Test {
 protected:
  struct Tracked {
    DetachedCalls::Call call;
    absl::Status cancelled;
    int cancels = 0;
  };

  std::unique_ptr<Tracked> Begin(Kind kind) {
    auto tracked = std::make_unique<Tracked>();
    absl::StatusOr<DetachedCalls::Call> call = calls_.Begin(kind, [&tracked = *tracked](const absl::Status& reason) {
      tracked.cancelled = reason;
      ++tracked.cancels;
    });
    EXPECT_TRUE(call.ok()) << call.status();
    tracked->call = *std::move(call);
    return tracked;
  }

  test::ManualClock clock_;
  std::vector<absl::Time> expected_;
  DetachedCalls calls_{clock_, absl::Seconds(10), [this](absl::Time time) { expected_.push_back(time); }};
};

TEST_F(DetachedCallsTest, ATransferThatDoesNotMoveIsCancelledOnce) {
  const absl::Time start = clock_.Now();
  const auto still = Begin(Kind::kTransfer);
  const auto moving = Begin(Kind::kTransfer);
  const auto watch = Begin(Kind::kWatch);
  EXPECT_EQ(expected_.at(0), start + absl::Seconds(10));
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(calls_.ExpireStalled(), start + absl::Seconds(10));
  moving->call.Progress();
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(calls_.ExpireStalled(), start + absl::Seconds(19));
  EXPECT_EQ(still->cancels, 1);
  EXPECT_EQ(still->cancelled.code(), absl::StatusCode::kDeadlineExceeded);
  clock_.Advance(absl::Seconds(100));
  EXPECT_EQ(calls_.ExpireStalled(), absl::InfiniteFuture());
  EXPECT_EQ(still->cancels, 1);
  EXPECT_EQ(moving->cancels, 1);
  EXPECT_EQ(watch->cancels, 0);
}

TEST_F(DetachedCallsTest, ADrainEndsWatchesWaitsForTransfersAndRefusesNewCalls) {
  auto transfer = Begin(Kind::kTransfer);
  auto watch = Begin(Kind::kWatch);
  int drained = 0;
  calls_.Drain([&drained] { ++drained; });
  EXPECT_EQ(watch->cancelled.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(transfer->cancels, 0);
  for (const Kind kind : {Kind::kTransfer, Kind::kWatch}) {
    EXPECT_EQ(calls_.Begin(kind, [](const absl::Status&) {}).status().code(), absl::StatusCode::kUnavailable);
  }
  watch->call.End();
  EXPECT_EQ(drained, 0);
  transfer->call.End();
  EXPECT_EQ(drained, 1);
  transfer->call.End();
  EXPECT_EQ(drained, 1);
}

TEST_F(DetachedCallsTest, WithoutCallsADrainIsOverAtOnce) {
  int drained = 0;
  { const auto over = Begin(Kind::kTransfer); }
  calls_.Drain([&drained] { ++drained; });
  EXPECT_EQ(drained, 1);
}

TEST_F(DetachedCallsTest, WhatADrainLeavesCanBeCancelled) {
  auto transfer = Begin(Kind::kTransfer);
  auto watch = Begin(Kind::kWatch);
  int drained = 0;
  calls_.Drain([&drained] { ++drained; });
  calls_.CancelAll();
  EXPECT_EQ(transfer->cancels, 1);
  EXPECT_EQ(watch->cancels, 1) << "by the drain";
  transfer.reset();
  watch.reset();
  EXPECT_EQ(drained, 1);
}

}  // namespace
}  // namespace gdpcache::rpc
