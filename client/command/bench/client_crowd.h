#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_CLIENT_CROWD_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_CLIENT_CROWD_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/command/bench/prefill_workload.h"
#include "gdpcache/options.h"

namespace gdpcache::bench {

/// What many clients of one server got done.
struct CrowdTimes {
  double calls_per_second = 0;
  std::vector<double> call_us;  // of each call of each client
  // Processor time of a call, all threads together.
  double server_us = 0;
  double client_us = 0;
};

/// Calls on one cache can share a launch; those on caches of their own cannot.
enum class Caches { kOne, kOneEach };

/// What each client calls: nothing but a renewal of its session, or prefills, whose tensors with kShared lie in memory
/// shared with the server.
enum class CrowdCall { kEmpty, kInline, kShared };

struct CrowdPlan {
  std::string server;
  ClientOptions client_options = {};
  pid_t server_process = 0;
  std::string cache = "bench/crowd";
  PrefillShape shape;  // a single sequence
  CrowdCall call = CrowdCall::kEmpty;
  absl::Duration duration;
};

/// `clients` threads, each with a connection, a session, a slot and tensors of its own, call one behind the other.
/// CANCELLED when interrupted.
absl::StatusOr<CrowdTimes> MeasureCrowd(const CrowdPlan& plan, int clients, Caches caches);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_CLIENT_CROWD_H_
