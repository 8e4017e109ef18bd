#ifndef GDPCACHE_TESTS_UNIT_CLIENT_COMMAND_BENCH_SAMPLE_REPORT_H_
#define GDPCACHE_TESTS_UNIT_CLIENT_COMMAND_BENCH_SAMPLE_REPORT_H_

#include "client/command/bench/figure.h"

namespace gdpcache::bench {

/// One figure of each kind, and one that was skipped.
inline Report SampleReport() {
  Report report;
  report.address = "127.0.0.1:7411";
  report.server.version = "1.2.3";
  report.server.backend = "cpu";
  report.server.device = "a processor";
  report.model = {.layers = 2, .heads = 4, .key_dim = 8, .value_dim = 16};
  report.seconds = 0.5;
  report.date = "2026-11-29T00:00:00+00:00";
  report.figures = {
      Latency("prefill/256/stream", {300, 100, 200}, {{"byte pump", 60}, {"kernel", 40}}, 1'000'000),
      Throughput("decode/8", {500, 700}, 12'000, {{"one client", 4'000}}),
      Latency("slots/copy", {50}, {{"memory copy", 60}, {"empty RPC", 40}}),
  };
  report.skipped = {{"snapshots/save", "the server keeps no snapshots"}};
  return report;
}

}  // namespace gdpcache::bench

#endif  // GDPCACHE_TESTS_UNIT_CLIENT_COMMAND_BENCH_SAMPLE_REPORT_H_
