#include "client/command/top/view_json.h"

#include "gtest/gtest.h"
#include "tests/unit/client/command/top/sample_view.h"

namespace gdpcache::command::top {
namespace {

TEST(ViewJsonTest, HasStateTotalsAndRates) {
  const nlohmann::json json = ToJson(SampleView());
  EXPECT_EQ(json["reachable"], true);
  EXPECT_EQ(json["server"], "gpu-7:7411");
  EXPECT_EQ(json["time"], "2023-11-14T23:13:22.000Z");
  EXPECT_EQ(json["uptime_ms"], 3'602'000);
  EXPECT_EQ(json["caches"][0]["held_slots"], 500);
  EXPECT_EQ(json["snapshot_tiers"][2]["tier"], "disk");
  EXPECT_EQ(json["queue"]["waiting"], 14);
  EXPECT_EQ(json["totals"]["prefills"]["tokens"], 747'000);
  EXPECT_EQ(json["totals"]["snapshots"]["stored"], 2'024);
  EXPECT_EQ(json["rates"]["seconds"], 2.0);
  EXPECT_EQ(json["rates"]["prefills"]["tokens"], 123'500);
  EXPECT_EQ(json["rates"]["snapshots"]["hit_rate"], 0.9);
  EXPECT_EQ(json["rates"]["errors"], 0.5);
  EXPECT_EQ(json["rpcs"][0]["method"], "Prefill");
  EXPECT_EQ(json["rpcs"][0]["totals"]["calls"], 1206);
  EXPECT_EQ(json["rpcs"][0]["rates"]["calls"], 100.5);
}

TEST(ViewJsonTest, HasTheWaitOfNewCalls) {
  View view = SampleView();
  EXPECT_EQ(ToJson(view)["queue"]["expected_wait_ms"], 0);
  view.answer->info.expected_wait = absl::Milliseconds(1'250);
  EXPECT_EQ(ToJson(view)["queue"]["expected_wait_ms"], 1'250);
}

TEST(ViewJsonTest, RatesAreNullWhereThereAreNone) {
  Model model("a");
  model.Answered(kNoon, SampleAnswer());
  const nlohmann::json json = ToJson(model.view());
  EXPECT_TRUE(json["rates"].is_null());
  EXPECT_TRUE(json["rpcs"][0]["rates"].is_null());
  EXPECT_EQ(json["rpcs"][0]["totals"]["errors"], 5);
}

TEST(ViewJsonTest, AnOutageSaysSinceWhenAndWhy) {
  Model model("a");
  model.Answered(kNoon, SampleAnswer());
  model.Failed(kNoon + absl::Seconds(1), absl::UnavailableError("gone"));
  const nlohmann::json json = ToJson(model.view());
  EXPECT_EQ(json["reachable"], false);
  EXPECT_EQ(json["unreachable_since"], "2023-11-14T23:13:21.000Z");
  EXPECT_EQ(json["error"], "gone");
  EXPECT_FALSE(json.contains("totals"));
}

}  // namespace
}  // namespace gdpcache::command::top
