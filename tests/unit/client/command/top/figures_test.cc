#include "client/command/top/figures.h"

#include "gtest/gtest.h"

namespace gdpcache::command::top {
namespace {

TEST(FiguresTest, CountsTakeFewCharacters) {
  EXPECT_EQ(ShortCount(0), "0");
  EXPECT_EQ(ShortCount(0.25), "0.25");
  EXPECT_EQ(ShortCount(0.999), "1.0");
  EXPECT_EQ(ShortCount(7), "7");
  EXPECT_EQ(ShortCount(7.25), "7.2");
  EXPECT_EQ(ShortCount(12.34), "12");
  EXPECT_EQ(ShortCount(999), "999");
  EXPECT_EQ(ShortCount(999.7), "1.0k");
  EXPECT_EQ(ShortCount(123'456), "123k");
  EXPECT_EQ(ShortCount(999'600), "1.0M");
  EXPECT_EQ(ShortCount(4.5e9), "4.5G");
  EXPECT_EQ(ShortCount(1e21), "1000E");
}

TEST(FiguresTest, DurationsHaveTheUnitThatFits) {
  EXPECT_EQ(ShortDuration(std::nullopt), "-");
  EXPECT_EQ(ShortDuration(absl::Microseconds(85)), "85 us");
  EXPECT_EQ(ShortDuration(absl::Microseconds(1234)), "1.2 ms");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(56)), "56 ms");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(3400)), "3.4 s");
}

TEST(FiguresTest, UptimesHaveTheirTwoLargestUnits) {
  EXPECT_EQ(ShortUptime(absl::Seconds(42)), "42s");
  EXPECT_EQ(ShortUptime(absl::Seconds(303)), "5m 3s");
  EXPECT_EQ(ShortUptime(absl::Minutes(133)), "2h 13m");
  EXPECT_EQ(ShortUptime(absl::Hours(76)), "3d 4h");
}

TEST(FiguresTest, SharesOfNothingAreNoNumber) {
  EXPECT_EQ(Percent(1, 2), "50 %");
  EXPECT_EQ(Percent(0, 0), "-");
}

}  // namespace
}  // namespace gdpcache::command::top
