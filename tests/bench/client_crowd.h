#ifndef GDPCACHE_TESTS_BENCH_CLIENT_CROWD_H_
#define GDPCACHE_TESTS_BENCH_CLIENT_CROWD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/bench/prefill_workload.h"

namespace gdpcache::bench {

/// What many clients of one server got done.
struct CrowdTimes {
  double calls_per_second = 0;
  std::vector<double> call_us;  // of each call of each client
};

/// Calls on one cache can share a launch; those on caches of their own cannot.
enum class Caches { kOne, kOneEach };

/// `clients` threads, each with a connection, a session, a slot and tensors of its own, run prefills of `shape`, a
/// single sequence, one behind the other for `duration`. With kSharedMemory their tensors lie in memory shared with the
/// server.
absl::StatusOr<CrowdTimes> MeasureCrowd(const std::string& server, const PrefillShape& shape, int clients,
                                        Caches caches, Transport transport, absl::Duration duration);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_TESTS_BENCH_CLIENT_CROWD_H_
