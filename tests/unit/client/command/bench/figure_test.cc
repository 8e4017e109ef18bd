#include "client/command/bench/figure.h"

#include "gtest/gtest.h"
#include "tests/unit/client/command/bench/sample_report.h"

namespace gdpcache::bench {
namespace {

TEST(FigureTest, LatenciesCompareMediansWithTheSumOfTheYardsticks) {
  const Figure figure = Latency("x", {300, 100, 200}, {{"byte pump", 60}, {"kernel", 40}}, 1'000);
  EXPECT_EQ(figure.value, 200);
  EXPECT_EQ(figure.p50_us, 200);
  EXPECT_EQ(figure.p99_us, 300);
  EXPECT_EQ(figure.calls, 3);
  EXPECT_DOUBLE_EQ(figure.calls_per_second, 5'000);
  EXPECT_EQ(figure.yardstick(), 100);
  EXPECT_EQ(figure.ratio(), 2);
}

TEST(FigureTest, ThroughputsCompareCallsPerSecond) {
  const Figure figure = Throughput("x", {500, 700}, 12'000, {{"one client", 4'000}});
  EXPECT_EQ(figure.value, 12'000);
  EXPECT_EQ(figure.ratio(), 3);
}

TEST(FigureTest, JsonHasEveryField) {
  const nlohmann::json json = ToJson(SampleReport());
  EXPECT_EQ(json["date"], "2026-11-29T00:00:00+00:00");
  EXPECT_EQ(json["server"]["address"], "127.0.0.1:7411");
  EXPECT_EQ(json["server"]["version"], "1.2.3");
  EXPECT_EQ(json["server"]["backend"], "cpu");
  EXPECT_EQ(json["server"]["device"], "a processor");
  EXPECT_EQ(json["model"]["layers"], 2);
  EXPECT_EQ(json["model"]["heads"], 4);
  EXPECT_EQ(json["model"]["key_dim"], 8);
  EXPECT_EQ(json["model"]["value_dim"], 16);
  EXPECT_EQ(json["model"]["slot_bytes"], 2 * 4 * 8 * 16 * 4);
  EXPECT_EQ(json["seconds"], 0.5);
  ASSERT_EQ(json["measurements"].size(), 3);
  EXPECT_EQ(json["measurements"][0], nlohmann::json::parse(R"({
    "name": "prefill/256/stream", "unit": "us", "better": "less", "value": 200.0, "p50_us": 200.0, "p99_us": 300.0,
    "calls": 3, "calls_per_second": 5000.0, "bytes": 1000000, "ratio": 2.0,
    "yardstick": {"value": 100.0, "parts": [{"name": "byte pump", "value": 60.0}, {"name": "kernel", "value": 40.0}]}
  })"));
  EXPECT_EQ(json["measurements"][1]["unit"], "calls/s");
  EXPECT_EQ(json["measurements"][1]["better"], "more");
  EXPECT_FALSE(json["measurements"][1].contains("bytes"));
  EXPECT_EQ(json["skipped"],
            nlohmann::json::parse(R"([{"name": "snapshots/save", "reason": "the server keeps no snapshots"}])"));
}

TEST(FigureTest, TimesHaveThreeDigits) {
  EXPECT_EQ(FormatMicroseconds(0.5), "0.50 us");
  EXPECT_EQ(FormatMicroseconds(9.994), "9.99 us");
  EXPECT_EQ(FormatMicroseconds(9.996), "10.0 us");
  EXPECT_EQ(FormatMicroseconds(99.96), "100 us");
  EXPECT_EQ(FormatMicroseconds(999.4), "999 us");
  EXPECT_EQ(FormatMicroseconds(999.6), "1.00 ms");
  EXPECT_EQ(FormatMicroseconds(12'345), "12.3 ms");
  EXPECT_EQ(FormatMicroseconds(12'345'678), "12.3 s");
  EXPECT_EQ(FormatMicroseconds(12'345'678'000), "12346 s");
}

TEST(FigureTest, SlotsBeyondFourGigabytesAreCounted) {
  EXPECT_EQ(SlotBytes({.layers = 65'536, .heads = 1'024, .key_dim = 256, .value_dim = 1'024}), std::int64_t{1} << 46);
}

}  // namespace
}  // namespace gdpcache::bench
