#include "server/rpc/metrics/refusal_metrics.h"

#include <map>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/errors.h"
#include "server/engine/admission.h"
#include "server/engine/overload.h"

namespace gdpcache::rpc {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

/// Reason -> calls, as Prometheus is told.
std::map<std::string, double> Counted(const prometheus::Registry& registry) {
  std::map<std::string, double> counted;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    EXPECT_EQ(family.name, "gdpcache_refused_calls_total");
    for (const prometheus::ClientMetric& metric : family.metric) {
      counted[metric.label.front().value] = metric.counter.value;
    }
  }
  return counted;
}

TEST(RefusalMetricsTest, EveryReasonIsThereFromTheBeginning) {
  prometheus::Registry registry;
  const RefusalMetrics metrics(registry);
  EXPECT_THAT(Counted(registry), UnorderedElementsAre(Pair("unauthenticated", 0), Pair("permission_denied", 0),
                                                      Pair("overload", 0), Pair("limit", 0), Pair("unavailable", 0)));
}

TEST(RefusalMetricsTest, TellsTooMuchToDoFromTooMuchToKeep) {
  prometheus::Registry registry;
  RefusalMetrics metrics(registry);
  metrics.Count(engine::Overloaded("too many calls", absl::Seconds(1)));
  metrics.Count(cache::Exhausted("no slot is free", absl::Seconds(1)));
  metrics.Count(absl::ResourceExhaustedError("the tenant's quota"));
  EXPECT_EQ(Counted(registry)["overload"], 1);
  EXPECT_EQ(Counted(registry)["limit"], 2);
}

TEST(RefusalMetricsTest, WhatIsWrongWithACallIsNoRefusal) {
  prometheus::Registry registry;
  RefusalMetrics metrics(registry);
  for (int code = 0; code <= 16; ++code) metrics.Count(absl::Status(static_cast<absl::StatusCode>(code), "x"));
  EXPECT_THAT(Counted(registry), UnorderedElementsAre(Pair("unauthenticated", 1), Pair("permission_denied", 1),
                                                      Pair("overload", 0), Pair("limit", 1), Pair("unavailable", 1)));
}

TEST(RefusalMetricsTest, AdmissionRefusesForOverloadAndSaysWhenToComeAgain) {
  engine::Admission admission({.max_calls = 1}, /*workers=*/1);
  ASSERT_TRUE(admission.Begin(1, absl::UnixEpoch()).ok());
  const absl::Status refused = admission.Begin(2, absl::UnixEpoch());
  EXPECT_TRUE(engine::IsOverload(refused)) << refused;
  EXPECT_TRUE(cache::RetryAfterOf(refused).has_value());
  EXPECT_FALSE(engine::IsOverload(absl::ResourceExhaustedError("x")));
}

}  // namespace
}  // namespace gdpcache::rpc
