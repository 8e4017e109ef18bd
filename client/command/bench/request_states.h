#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_REQUEST_STATES_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_REQUEST_STATES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/command/bench/rounds.h"
#include "client/command/bench/run.h"

namespace gdpcache::bench {

/// The states of all of the model's layers in one slot, and a second slot of the same cache.
class RequestStates {
 public:
  /// Fills the first slot: memory that was never written to is copied faster than it should be.
  static absl::StatusOr<RequestStates> Create(const Run& run);

  std::int64_t bytes() const { return static_cast<std::int64_t>(values_.size() * sizeof(float)); }
  Session& session() { return lease_.session; }
  const std::string& cache() const { return lease_.cache.name(); }
  std::int64_t slot() const { return lease_.slots[0]; }
  std::int64_t other_slot() const { return lease_.slots[1]; }

  /// The first slot from the server into memory of this process, and to the server.
  absl::Status Read();
  absl::Status Write();

 private:
  RequestStates(Lease lease, std::vector<float> values) : lease_(std::move(lease)), values_(std::move(values)) {}

  std::vector<std::int64_t> Shape() const;

  Lease lease_;
  std::vector<float> values_;
};

/// Adds what a copy of the states on the server takes, against one of as many bytes in memory and an empty RPC.
absl::Status MeasureCopying(Run& run, RequestStates& states, const std::string& name, TimedCall copy);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_REQUEST_STATES_H_
