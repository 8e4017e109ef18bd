#ifndef GDPCACHE_SERVER_ENGINE_PREFILL_STEPS_H_
#define GDPCACHE_SERVER_ENGINE_PREFILL_STEPS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend.h"
#include "server/cache/cache.h"
#include "server/engine/ordered_call.h"
#include "server/engine/prefill_plan.h"
#include "server/engine/segment.h"

/// What unary and streamed prefills do alike once they hold their slots.
namespace gdpcache::engine {

/// The slots of the call, which its session must hold; for OrderedCall::Arrive.
absl::StatusOr<Places> TakeSlots(const PrefillPlan& plan, const CallContext& context, const cache::Cache& cache);

/// FAILED_PRECONDITION naming every slot that is not at the position the call expects.
absl::Status CheckPositions(const PrefillPlan& plan, const cache::Cache& cache);

/// INVALID_ARGUMENT when a row of the segment, or a state that one of its sequences starts from, holds a NaN or an
/// infinity. `launch` describes the segment.
absl::Status CheckFinite(kernels::Backend& backend, kernels::Stream& stream, const PrefillPlan& plan,
                         const Segment& segment, const SegmentMemory& memory, const Launch& launch);

/// Natural logarithms to log2, in float32; `from` and `to` may be the same.
void NaturalToLog2(const float* from, float* to, std::int64_t elements);

/// Moves the slots' positions in the call's layer on, for a call that is committed: ZERO and TENSOR count from 0 again.
void AdvancePositions(const PrefillPlan& plan, cache::Cache& cache);

/// Writes the slots' auxiliary bytes out of `auxiliary` ([N, auxiliary_bytes]; nullptr where the call brings none),
/// runs `write_states`, waits for both and advances the positions: everything or,
/// when a step is refused, nothing. `backup` has room for the bytes to be replaced, as many as `auxiliary`.
absl::Status CommitPrefill(kernels::Backend& backend, kernels::Stream& stream, const PrefillPlan& plan,
                           cache::Cache& cache, const std::byte* auxiliary, std::byte* backup,
                           absl::FunctionRef<absl::Status()> write_states);

/// The slots' positions in the call's layer, [N]; -1 for sequences without a slot.
std::vector<std::int64_t> Positions(const PrefillPlan& plan, const cache::Cache& cache);

/// Where sequence `n` starts from, as the call's source says, and the slot it ends in. `initial_state` is the tensor of
/// TENSOR. A zero-length sequence that would write its slot's own state back leaves it alone.
SequenceStates StatesInPlace(const PrefillPlan& plan, const cache::Cache& cache, const float* initial_state,
                             std::int64_t n);

/// The part of v_new, which begins at the segment's first row, where no sequence has rows; maybe empty.
kernels::ByteRange UnusedRows(const PrefillPlan& plan, const Segment& segment, void* v_new);

/// Zeroes v_new, which begins at the segment's first row, where no sequence has rows.
void ZeroUnusedRows(const PrefillPlan& plan, const Segment& segment, void* v_new);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_PREFILL_STEPS_H_
