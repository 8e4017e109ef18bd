#include "client/command/top/model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/command/top/sample_view.h"

namespace gdpcache::command::top {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Optional;

TEST(TopModelTest, HasNoRatesBeforeTheSecondAnswer) {
  Model model("a");
  model.Answered(kNoon, SampleAnswer());
  EXPECT_TRUE(model.view().answer.has_value());
  EXPECT_FALSE(model.view().growth.has_value());
  EXPECT_EQ(model.view().total.calls, 20 + 1005 + 7);
  EXPECT_EQ(model.view().total.errors, 5);
}

TEST(TopModelTest, RatesAreDifferencesWithinTheServersTime) {
  const View view = SampleView();
  ASSERT_TRUE(view.growth.has_value());
  const Growth& growth = *view.growth;
  EXPECT_EQ(growth.span, absl::Seconds(2));
  EXPECT_EQ(growth.PerSecond(growth.prefills.tokens), 123'500);
  EXPECT_EQ(growth.PerSecond(growth.prefills.sequences), 300);
  EXPECT_EQ(growth.PerSecond(growth.prefills.calls), 100);
  EXPECT_EQ(growth.prefills.compute, absl::Seconds(1.5));
  EXPECT_EQ(growth.snapshots.stored, 24);
  EXPECT_EQ(growth.snapshots.evicted, 3);
  EXPECT_THAT(HitRate(growth.snapshots), Optional(0.9));
  EXPECT_EQ(growth.calls, 1 + 100 + 201 + 1);
}

TEST(TopModelTest, TheBusiestMethodComesFirstAndANewOneCountsFromZero) {
  const View view = SampleView();
  EXPECT_THAT(view.growth->rpcs,
              ElementsAre(Field(&RpcGrowth::method, "Prefill"), Field(&RpcGrowth::method, "LookupPrefix"),
                          Field(&RpcGrowth::method, "WatchSnapshots"), Field(&RpcGrowth::method, "KeepAlive")));
  EXPECT_EQ(view.growth->rpcs[0].active, 16);
  EXPECT_EQ(view.growth->rpcs[1].calls, 100);
}

TEST(TopModelTest, CancelledRpcsAreNoErrors) {
  const View view = SampleView();
  EXPECT_EQ(view.growth->errors, 1);
  EXPECT_EQ(view.total.errors, 6);
}

TEST(TopModelTest, ARestartedServerHasNoRatesAtFirst) {
  Model model("a");
  model.Answered(kNoon, SampleAnswer());
  Answer restarted = LaterAnswer();  // its counters may even be larger
  restarted.stats.started += absl::Seconds(30);
  model.Answered(kNoon + absl::Seconds(60), restarted);
  EXPECT_FALSE(model.view().growth.has_value());
  restarted.stats.uptime += absl::Seconds(1);
  restarted.stats.prefills.tokens += 10;
  model.Answered(kNoon + absl::Seconds(61), restarted);
  ASSERT_TRUE(model.view().growth.has_value());
  EXPECT_EQ(model.view().growth->prefills.tokens, 10);
}

TEST(TopModelTest, AnOutageBeginsWithTheFirstFailureAndEndsWithAnAnswer) {
  Model model("a");
  model.Answered(kNoon, SampleAnswer());
  model.Failed(kNoon + absl::Seconds(1), absl::UnavailableError("first"));
  model.Failed(kNoon + absl::Seconds(2), absl::UnavailableError("second"));
  ASSERT_TRUE(model.view().outage.has_value());
  EXPECT_EQ(model.view().outage->since, kNoon + absl::Seconds(1));
  EXPECT_EQ(model.view().outage->error.message(), "second");
  EXPECT_TRUE(model.view().answer.has_value());
  EXPECT_FALSE(model.view().growth.has_value());
  model.Answered(kNoon + absl::Seconds(3), LaterAnswer());
  EXPECT_FALSE(model.view().outage.has_value());
  EXPECT_TRUE(model.view().growth.has_value());
}

TEST(QuantileTest, SpreadsEvenlyWithinABucket) {
  const std::vector<DurationBucket> buckets = {
      {absl::Milliseconds(1), 50}, {absl::Milliseconds(3), 50}, {std::nullopt, 0}};
  EXPECT_THAT(Quantile(buckets, 0.25), Optional(absl::Milliseconds(0.5)));
  EXPECT_THAT(Quantile(buckets, 0.5), Optional(absl::Milliseconds(1)));
  EXPECT_THAT(Quantile(buckets, 0.75), Optional(absl::Milliseconds(2)));
}

TEST(QuantileTest, KnowsNoMoreThanTheLastLimit) {
  EXPECT_THAT(Quantile({{absl::Milliseconds(1), 0}, {std::nullopt, 3}}, 0.5), Optional(absl::Milliseconds(1)));
}

TEST(QuantileTest, OfNothingIsNothing) {
  EXPECT_EQ(Quantile({}, 0.5), std::nullopt);
  EXPECT_EQ(Quantile({{absl::Milliseconds(1), 0}, {std::nullopt, 0}}, 0.5), std::nullopt);
}

TEST(HitRateTest, OfNoLookupsIsNothing) { EXPECT_EQ(HitRate(SnapshotStats()), std::nullopt); }

}  // namespace
}  // namespace gdpcache::command::top
