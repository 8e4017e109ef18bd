#ifndef GDPCACHE_SERVER_ENGINE_SHARED_PLACES_H_
#define GDPCACHE_SERVER_ENGINE_SHARED_PLACES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/engine/prefill_plan.h"
#include "server/engine/prefill_request.h"
#include "server/engine/segment.h"

/// What a prefill has in shared memory.
namespace gdpcache::engine {

/// Checks what PlanPrefill has not: that each destination is of a result that is asked for, lies inside its region and
/// overlaps no other tensor, that the events are events, and that the done flag is a word of system memory that nothing
/// else of the call overlaps. INVALID_ARGUMENT names the field and both values.
absl::Status CheckDestinations(const PrefillRequest& request, const PrefillPlan& plan);

/// Where an input of a planned call is.
const void* DataOf(const TensorArgument& tensor);

/// Where the tensors of a planned call are; results that have no place in shared memory are nullptr.
SegmentMemory MemoryOf(const PrefillRequest& request);

/// The done flag of a planned call; nullptr: none.
std::uint32_t* FlagOf(const PrefillRequest& request);

/// Bytes of the call's inputs, and of its results, that travel with the messages.
std::int64_t InlineInputBytes(const PrefillRequest& request, const PrefillPlan& plan);
std::int64_t InlineOutputBytes(const PrefillRequest& request, const PrefillPlan& plan);

/// Bytes of inputs and results that are not in the device's memory.
std::int64_t HostBytes(const PrefillRequest& request, const PrefillPlan& plan);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_SHARED_PLACES_H_
