#include "client/command/bench/statistics.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace gdpcache::bench {
namespace {

TEST(StatisticsTest, QuantilesAreSamplesWhateverTheirOrder) {
  std::vector<double> values(101);
  std::iota(values.begin(), values.end(), 0);
  std::shuffle(values.begin(), values.end(), std::mt19937(1));  // NOLINT(cert-msc51-cpp): the same every time
  EXPECT_EQ(Quantile(values, 0), 0);
  EXPECT_EQ(Quantile(values, 0.5), 50);
  EXPECT_EQ(Median(values), 50);
  EXPECT_EQ(Quantile(values, 0.99), 99);
  EXPECT_EQ(Quantile(values, 1), 100);
}

TEST(StatisticsTest, OneOutlierOfThreeIsTheP99ButNotTheMedian) {
  EXPECT_EQ(Median({1, 1000, 2}), 2);
  EXPECT_EQ(Quantile({1, 1000, 2}, 0.99), 1000);
  EXPECT_EQ(Quantile({7}, 0.99), 7);
}

TEST(StatisticsTest, MeansCountAll) { EXPECT_EQ(Mean({1, 2, 6}), 3); }

}  // namespace
}  // namespace gdpcache::bench
