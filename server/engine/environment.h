#ifndef GDPCACHE_SERVER_ENGINE_ENVIRONMENT_H_
#define GDPCACHE_SERVER_ENGINE_ENVIRONMENT_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/admission.h"
#include "server/engine/event_poller.h"
#include "server/engine/executor.h"
#include "server/engine/staging_pool.h"

namespace gdpcache::engine {

struct EngineOptions {
  /// Inputs and results of all calls in flight together, in host memory; and once more in device memory where that is
  /// not the same.
  std::int64_t staging_bytes = std::int64_t{1} << 30;
  int workers = 4;
  AdmissionLimits admission = {};
  /// A unary answer's tensors; larger ones must be streamed.
  std::int64_t max_unary_output_bytes = std::int64_t{64} << 20;
  /// From a unary call's coming to its ready event.
  absl::Duration max_ready_wait = absl::Seconds(10);
  /// Inputs and results of one segment of a streamed prefill, about; less when staging_bytes is small.
  std::int64_t segment_bytes = std::int64_t{4} << 20;

  /// Staging memory that one call's inputs may fill by running ahead of each other.
  std::int64_t max_call_input_bytes() const { return staging_bytes / 4; }
};

/// Told that the device counts as lost, because a step has failed with UNAVAILABLE: the backend said so, or has refused
/// what comes behind work that cannot be taken back. On whichever thread found out, maybe more than once. The calls
/// concerned fail by themselves; no state is left to be served.
using DeviceLostCallback = std::function<void(const absl::Status&)>;

/// What every call of an engine works with; outlives them.
struct Environment {
  kernels::Backend& backend;
  const EngineOptions& options;
  StagingPool& staging;
  StagingPool* device_staging;  // nullptr where the arithmetic reaches host memory
  Executor& executor;
  Admission& admission;
  EventPoller& poller;
  cache::SnapshotStore* snapshots;  // nullptr where none are kept
  const DeviceLostCallback& on_device_lost;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_ENVIRONMENT_H_
