#include "client/command/bench/rounds.h"

#include <signal.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/command/bench/interruption.h"
#include "gtest/gtest.h"

namespace gdpcache::bench {
namespace {

TEST(RoundsTest, CallsTakeTurnsAndTheFirstRoundDoesNotCount) {
  std::string order;
  int call = 0;
  const auto a = [&]() -> absl::StatusOr<absl::Duration> {
    order += 'a';
    return absl::Microseconds(++call);
  };
  const auto b = [&]() -> absl::StatusOr<absl::Duration> {
    order += 'b';
    return absl::ZeroDuration();
  };
  const auto samples = MeasureInTurn({a, b}, absl::ZeroDuration());
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_EQ(order, "abababababab");
  EXPECT_EQ((*samples)[0], (std::vector<double>{2, 3, 4, 5, 6}));
  EXPECT_EQ((*samples)[1], std::vector<double>(5, 0.001)) << "nothing takes no time";
}

TEST(RoundsTest, GoesOnForTheWholeTime) {
  const absl::Time start = absl::Now();
  const auto call = []() -> absl::StatusOr<absl::Duration> { return absl::Microseconds(1); };
  const auto samples = MeasureInTurn({call}, absl::Milliseconds(20));
  ASSERT_TRUE(samples.ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(20));
  EXPECT_GT((*samples)[0].size(), 5);
}

TEST(RoundsTest, TheFirstErrorEndsThem) {
  int calls = 0;
  const auto call = [&]() -> absl::StatusOr<absl::Duration> {
    if (++calls == 3) return absl::UnavailableError("gone");
    return absl::Microseconds(1);
  };
  EXPECT_EQ(MeasureInTurn({call}, absl::InfiniteDuration()).status(), absl::UnavailableError("gone"));
  EXPECT_EQ(calls, 3);
}

TEST(RoundsTest, ASignalEndsThem) {
  const Interruption interruption;
  const auto call = []() -> absl::StatusOr<absl::Duration> {
    raise(SIGINT);
    return absl::Microseconds(1);
  };
  EXPECT_EQ(MeasureInTurn({call}, absl::InfiniteDuration()).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace gdpcache::bench
