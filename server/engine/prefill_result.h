#ifndef GDPCACHE_SERVER_ENGINE_PREFILL_RESULT_H_
#define GDPCACHE_SERVER_ENGINE_PREFILL_RESULT_H_

#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/cache/snapshots/snapshot_store.h"

namespace gdpcache::engine {

/// Microseconds a prefill spent; prefill.proto documents them.
struct PrefillTiming {
  std::int64_t queue_us = 0;
  std::int64_t stage_in_us = 0;
  std::int64_t compute_us = 0;
  std::int64_t stage_out_us = 0;
  std::int64_t total_us = 0;
};

struct PrefillResult {
  std::vector<std::int64_t> positions;            // [N] after the call; -1 for sequences without a slot
  std::vector<cache::SnapshotOutcome> snapshots;  // one per directive
  PrefillTiming timing;
};

using PrefillDone = absl::AnyInvocable<void(absl::StatusOr<PrefillResult>)>;

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_PREFILL_RESULT_H_
