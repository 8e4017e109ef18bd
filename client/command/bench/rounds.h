#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_ROUNDS_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_ROUNDS_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gdpcache::bench {

/// Something that takes time, and how long it took.
using TimedCall = absl::FunctionRef<absl::StatusOr<absl::Duration>()>;

/// How long `work` takes by the clock.
absl::StatusOr<absl::Duration> Timed(absl::FunctionRef<absl::Status()> work);

/// Makes the calls in turn, round after round, so that whatever disturbs the machine disturbs all alike: for a tenth of
/// `duration`, and at least once, to warm up, then for `duration`, and at least five times. Returns the microseconds of
/// each call in each round. Ends with the first error, and with CANCELLED when interrupted.
absl::StatusOr<std::vector<std::vector<double>>> MeasureInTurn(const std::vector<TimedCall>& calls,
                                                               absl::Duration duration);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_ROUNDS_H_
