#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_FIGURE_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_FIGURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gdpcache/cache.h"
#include "nlohmann/json.hpp"

namespace gdpcache::bench {

/// What a figure counts.
enum class Unit {
  kMicroseconds,    // of a call; less is better
  kCallsPerSecond,  // more is better
};

/// Something measured beside a figure that it is compared with, in the figure's unit.
struct Yardstick {
  std::string name;
  double value = 0;
};

/// One result of the benchmark.
struct Figure {
  std::string name;  // "prefill/2048/stream": what stands before the first / is its group
  Unit unit = Unit::kMicroseconds;
  double value = 0;  // the median time, or the calls a second
  double p50_us = 0;
  double p99_us = 0;
  double calls_per_second = 0;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;             // that each call moves; 0 where that says nothing
  std::vector<Yardstick> yardsticks;  // compared with their sum

  double yardstick() const;
  double ratio() const { return value / yardstick(); }
};

/// Of calls made one behind the other.
Figure Latency(std::string name, const std::vector<double>& call_us, std::vector<Yardstick> yardsticks,
               std::int64_t bytes = 0);

/// Of calls made by several clients at once.
Figure Throughput(std::string name, const std::vector<double>& call_us, double calls_per_second,
                  std::vector<Yardstick> yardsticks);

/// Something that was not measured.
struct Skipped {
  std::string name;
  std::string reason;
};

/// What one run came to.
struct Report {
  std::string address;
  ServerInfo server;
  CacheGeometry model;  // of one request: `slots` means nothing
  double seconds = 0;   // for each measurement
  std::string date;     // RFC 3339
  std::vector<Figure> figures;
  std::vector<Skipped> skipped;
};

nlohmann::json ToJson(const Report& report);

/// "prefill" of "prefill/2048/stream".
std::string Group(const std::string& name);

/// "98.1 us", "1.24 ms", "12.0 s": three digits.
std::string FormatMicroseconds(double us);

/// The figure's value with its unit: "98.1 us" or "7,380 calls/s".
std::string FormatValue(const Figure& figure, double value);

/// "byte pump 61.2 ms + kernel 24.1 ms".
std::string FormatYardsticks(const Figure& figure);

/// "gdpcached 0.1.0 on cpu, AVX3_ZEN4, 2 threads, over unix:/run/gdpcache.sock".
std::string DescribeServer(const Report& report);

/// "36 layers of 32 heads of 128 x 128 (75.5 MB a slot)".
std::string DescribeModel(const CacheGeometry& model);

/// Bytes of one slot of the model, all layers, float32.
std::int64_t SlotBytes(const CacheGeometry& model);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_FIGURE_H_
