#ifndef GDPCACHE_TESTS_BENCH_OVERLOAD_H_
#define GDPCACHE_TESTS_BENCH_OVERLOAD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gdpcache::bench {

/// A batch of short sequences, as an engine's step brings it: the message is small and the states it advances are not.
struct OverloadShape {
  std::int64_t sequences = 8;
  std::int64_t tokens = 1;  // of each
  std::int64_t heads = 8;
  std::int64_t key_dim = 256;
  std::int64_t value_dim = 256;
};

struct OverloadOptions {
  int clients = 64;
  double load = 4;  // what they offer, in terms of what the server takes
  absl::Duration duration = absl::Seconds(10);
  OverloadShape shape;
  std::vector<std::string> server_flags;  // after those that the driver gives
};

/// What clients saw while they kept the server busy.
struct OverloadPhase {
  int clients = 0;
  double seconds = 0;
  double offered_per_second = 0;
  double admitted_per_second = 0;
  double admitted_p50_ms = 0;
  double admitted_p99_ms = 0;
  double admitted_max_ms = 0;
  double refused_p50_ms = 0;
  double refused_p99_ms = 0;
  std::map<std::string, std::int64_t> statuses;
  std::int64_t refused_without_retry_info = 0;
  std::int64_t wrong_results = 0;
  std::int64_t peak_resident_bytes = 0;  // of the server, up to the end of the phase

  std::int64_t count(const std::string& status) const {
    const auto found = statuses.find(status);
    return found == statuses.end() ? 0 : found->second;
  }
};

struct OverloadReport {
  OverloadPhase idle;      // one client, one call after the other
  OverloadPhase at_limit;  // as many of those as the server takes while it refuses next to none
  OverloadPhase overload;  // all clients, `load` times what was admitted at the limit, whatever the server answers
  int server_exit_code = 0;

  /// The promise: what is admitted under overload takes at most twice as long.
  double p99_ratio() const { return overload.admitted_p99_ms / at_limit.admitted_p99_ms; }
};

/// Starts a gdpcached on the CPU backend (unless the flags say otherwise), overloads it, and stops it. Every admitted
/// call's results are compared, bit for bit, with those of an idle server; as each state goes on from the one before, a
/// refused call that had been applied would show, too.
absl::StatusOr<OverloadReport> RunOverload(const OverloadOptions& options);

std::string ToJson(const OverloadReport& report);
std::string ToTable(const OverloadReport& report);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_TESTS_BENCH_OVERLOAD_H_
