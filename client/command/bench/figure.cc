#include "client/command/bench/figure.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/command/bench/statistics.h"

namespace gdpcache::bench {
namespace {

constexpr double kMicrosecondsPerSecond = 1e6;

const char* Name(Unit unit) { return unit == Unit::kMicroseconds ? "us" : "calls/s"; }

nlohmann::json ToJson(const Figure& figure) {
  nlohmann::json parts = nlohmann::json::array();
  for (const Yardstick& part : figure.yardsticks) parts.push_back({{"name", part.name}, {"value", part.value}});
  nlohmann::json json = {{"name", figure.name},
                         {"unit", Name(figure.unit)},
                         {"better", figure.unit == Unit::kMicroseconds ? "less" : "more"},
                         {"value", figure.value},
                         {"p50_us", figure.p50_us},
                         {"p99_us", figure.p99_us},
                         {"calls", figure.calls},
                         {"calls_per_second", figure.calls_per_second},
                         {"yardstick", {{"value", figure.yardstick()}, {"parts", std::move(parts)}}},
                         {"ratio", figure.ratio()}};
  if (figure.bytes > 0) json["bytes"] = figure.bytes;
  return json;
}

Figure Measured(std::string name, const std::vector<double>& call_us, std::vector<Yardstick> yardsticks) {
  Figure figure;
  figure.name = std::move(name);
  figure.p50_us = Quantile(call_us, 0.5);
  figure.p99_us = Quantile(call_us, 0.99);
  figure.calls = static_cast<std::int64_t>(call_us.size());
  figure.yardsticks = std::move(yardsticks);
  return figure;
}

}  // namespace

double Figure::yardstick() const {
  double sum = 0;
  for (const Yardstick& part : yardsticks) sum += part.value;
  return sum;
}

Figure Latency(std::string name, const std::vector<double>& call_us, std::vector<Yardstick> yardsticks,
               std::int64_t bytes) {
  Figure figure = Measured(std::move(name), call_us, std::move(yardsticks));
  figure.unit = Unit::kMicroseconds;
  figure.value = figure.p50_us;
  figure.calls_per_second = kMicrosecondsPerSecond / Mean(call_us);
  figure.bytes = bytes;
  return figure;
}

Figure Throughput(std::string name, const std::vector<double>& call_us, double calls_per_second,
                  std::vector<Yardstick> yardsticks) {
  Figure figure = Measured(std::move(name), call_us, std::move(yardsticks));
  figure.unit = Unit::kCallsPerSecond;
  figure.value = calls_per_second;
  figure.calls_per_second = calls_per_second;
  return figure;
}

nlohmann::json ToJson(const Report& report) {
  nlohmann::json figures = nlohmann::json::array();
  for (const Figure& figure : report.figures) figures.push_back(ToJson(figure));
  nlohmann::json skipped = nlohmann::json::array();
  for (const Skipped& one : report.skipped) skipped.push_back({{"name", one.name}, {"reason", one.reason}});
  return {{"date", report.date},
          {"server",
           {{"address", report.address},
            {"version", report.server.version},
            {"backend", report.server.backend},
            {"device", report.server.device}}},
          {"model",
           {{"layers", report.model.layers},
            {"heads", report.model.heads},
            {"key_dim", report.model.key_dim},
            {"value_dim", report.model.value_dim},
            {"slot_bytes", SlotBytes(report.model)}}},
          {"seconds", report.seconds},
          {"measurements", std::move(figures)},
          {"skipped", std::move(skipped)}};
}

std::string Group(const std::string& name) { return name.substr(0, name.find('/')); }

std::string FormatMicroseconds(double us) {
  static constexpr const char* kUnits[] = {"us", "ms", "s"};
  std::size_t unit = 0;
  for (; us >= 999.5 && unit + 1 < std::size(kUnits); ++unit) us /= 1000;
  const int decimals = us >= 99.95 ? 0 : us >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f %s", decimals, us, kUnits[unit]);
}

std::string FormatValue(const Figure& figure, double value) {
  return figure.unit == Unit::kMicroseconds ? FormatMicroseconds(value) : absl::StrFormat("%.0f calls/s", value);
}

std::string FormatYardsticks(const Figure& figure) {
  return absl::StrJoin(figure.yardsticks, " + ", [&figure](std::string* out, const Yardstick& part) {
    absl::StrAppend(out, part.name, " ", FormatValue(figure, part.value));
  });
}

std::string DescribeServer(const Report& report) {
  return absl::StrCat("gdpcached ", report.server.version, " on ", report.server.backend, ", ", report.server.device,
                      ", over ", report.address);
}

std::string DescribeModel(const CacheGeometry& model) {
  return absl::StrFormat("%d layers of %d heads of %d x %d, float32: %.1f MB a slot", model.layers, model.heads,
                         model.key_dim, model.value_dim, static_cast<double>(SlotBytes(model)) * 1e-6);
}

std::int64_t SlotBytes(const CacheGeometry& model) {
  return model.layers * model.heads * model.key_dim * model.value_dim * ElementSize(DataType::kFloat32);
}

}  // namespace gdpcache::bench
