#ifndef GDPCACHE_SERVER_ENGINE_PREFILL_SNAPSHOTS_H_
#define GDPCACHE_SERVER_ENGINE_PREFILL_SNAPSHOTS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/call.h"
#include "server/engine/environment.h"
#include "server/engine/prefill_plan.h"
#include "server/engine/segment.h"

namespace gdpcache::engine {

/// The parts of snapshots that one prefill brings: their memory while the call runs, where the recurrence itself puts
/// the states, and their commit behind the call's. What is not committed goes with this object: nothing may be writing
/// there any more then.
class PrefillSnapshots {
 public:
  /// Takes memory for what the call's directives want kept; the call holds its slots. A directive without space is only
  /// an outcome; so is one whose key an earlier one has. FAILED_PRECONDITION when the call or the session has other
  /// parts of a snapshot at another position.
  absl::Status Begin(const Environment& environment, const CallContext& context, const PrefillPlan& plan);

  /// Lets the launch of a segment write the states that belong to it. For the segments in their order.
  void Join(const PrefillPlan& plan, const Segment& segment, Launch& launch);

  /// To be called behind the launch joined last: puts those final states on their way that it could not write, having
  /// no destination left. Where the backend refuses, they are not kept; UNAVAILABLE is the only error.
  absl::Status CopyFinalStates(kernels::Backend& backend, const kernels::RecurrenceShape& shape,
                               kernels::Stream& stream);

  /// Puts the auxiliary bytes on their way.
  absl::Status CopyAuxiliary(kernels::Backend& backend, const PrefillPlan& plan, kernels::Stream& stream) const;

  /// Hands everything over to the store; the call's own commit is complete. One outcome per directive.
  std::vector<cache::SnapshotOutcome> Commit();

 private:
  kernels::StateView StateOf(std::size_t directive, const PrefillPlan& plan) const;

  cache::SnapshotStore* store_ = nullptr;
  kernels::DataType state_dtype_ = kernels::DataType::kFloat32;
  std::vector<std::size_t> firsts_;               // by directive, the first of its key
  std::vector<cache::SnapshotDraft> drafts_;      // by directive; nothing where an earlier one has the key
  std::vector<std::size_t> order_;                // directives with memory, by sequence and boundary
  std::size_t next_ = 0;                          // of order_: the first that no launch has joined
  std::vector<std::size_t> copied_;               // directives whose state CopyFinalStates has to copy
  std::vector<kernels::StateCopy> final_copies_;  // of these
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_PREFILL_SNAPSHOTS_H_
