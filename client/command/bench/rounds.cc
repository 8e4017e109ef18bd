#include "client/command/bench/rounds.h"

#include <algorithm>
#include <cstddef>

#include "absl/time/clock.h"
#include "client/command/bench/interruption.h"

namespace gdpcache::bench {
namespace {

constexpr std::int64_t kLeastRounds = 5;

absl::Status RunRounds(const std::vector<TimedCall>& calls, absl::Duration duration, std::int64_t least,
                       std::vector<std::vector<double>>& samples) {
  const absl::Time end = absl::Now() + duration;
  for (std::int64_t round = 0; round < least || absl::Now() < end; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (absl::Status status = CheckInterruption(); !status.ok()) return status;
      const absl::StatusOr<absl::Duration> took = calls[i]();
      if (!took.ok()) return took.status();
      // The clock may be coarse, or set back: nothing takes no time.
      samples[i].push_back(absl::ToDoubleMicroseconds(std::max(*took, absl::Nanoseconds(1))));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<absl::Duration> Timed(absl::FunctionRef<absl::Status()> work) {
  const absl::Time start = absl::Now();
  absl::Status status = work();
  const absl::Duration took = absl::Now() - start;
  if (!status.ok()) return status;
  return took;
}

absl::StatusOr<std::vector<std::vector<double>>> MeasureInTurn(const std::vector<TimedCall>& calls,
                                                               absl::Duration duration) {
  std::vector<std::vector<double>> warm_up(calls.size());
  if (absl::Status status = RunRounds(calls, duration / 10, 1, warm_up); !status.ok()) return status;
  std::vector<std::vector<double>> samples(calls.size());
  if (absl::Status status = RunRounds(calls, duration, kLeastRounds, samples); !status.ok()) return status;
  return samples;
}

}  // namespace gdpcache::bench
