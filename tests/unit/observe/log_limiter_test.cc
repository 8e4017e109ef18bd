#include "server/observe/log_limiter.h"

#include <optional>

#include "gtest/gtest.h"

namespace gdpcache::observe {
namespace {

TEST(LogLimiter, LetsABurstThroughAndThenSoManyASecond) {
  LogLimiter limiter(/*per_second=*/10, /*burst=*/5);
  absl::Time now = absl::UnixEpoch();
  for (int n = 0; n < 5; ++n) EXPECT_EQ(limiter.Admit(now), 0);
  for (int n = 0; n < 1'000; ++n) EXPECT_EQ(limiter.Admit(now), std::nullopt);
  now += absl::Milliseconds(100);
  EXPECT_EQ(limiter.Admit(now), 1'000) << "tells what has been left out";
  EXPECT_EQ(limiter.Admit(now), std::nullopt);
  int lines = 0;
  for (int n = 0; n < 10'000; ++n) {
    now += absl::Milliseconds(1);
    if (limiter.Admit(now).has_value()) ++lines;
  }
  EXPECT_NEAR(lines, 100, 1);
}

TEST(LogLimiter, SavesUpNoMoreThanABurst) {
  LogLimiter limiter(/*per_second=*/10, /*burst=*/5);
  const absl::Time now = absl::UnixEpoch();
  EXPECT_TRUE(limiter.Admit(now).has_value());
  int lines = 0;
  for (int n = 0; n < 100; ++n) {
    if (limiter.Admit(now + absl::Hours(1)).has_value()) ++lines;
  }
  EXPECT_EQ(lines, 5);
}

TEST(LogLimiter, AClockThatGoesBackTakesNothingAway) {
  LogLimiter limiter(/*per_second=*/10, /*burst=*/2);
  EXPECT_TRUE(limiter.Admit(absl::UnixEpoch()).has_value());
  EXPECT_TRUE(limiter.Admit(absl::UnixEpoch() - absl::Hours(1)).has_value());
  EXPECT_FALSE(limiter.Admit(absl::UnixEpoch() - absl::Hours(1)).has_value());
}

}  // namespace
}  // namespace gdpcache::observe
