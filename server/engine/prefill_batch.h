#ifndef GDPCACHE_SERVER_ENGINE_PREFILL_BATCH_H_
#define GDPCACHE_SERVER_ENGINE_PREFILL_BATCH_H_

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/engine/environment.h"
#include "server/engine/unary_prefill.h"

namespace gdpcache::engine {

/// Does the steps of prefills that merge (UnaryPrefill::MergesWith) in one launch, and returns what tells each its
/// outcome: what is wrong with one is no matter of the others. Their descriptors are put one behind the other; tensors
/// are copied only where the arithmetic does not reach them, and then all together. A sequence's results do not depend
/// on what else is in a launch, so they are the same bits as alone.
///
/// Those that end on the device hand their slots over as soon as they are launched, and are told then if they are to be
/// answered early. If all do, the launch gets a stream of its own while there are some, and the poller notices its end;
/// else this waits for it on `stream`.
absl::AnyInvocable<void()> RunPrefillBatch(const Environment& environment, absl::Span<UnaryPrefill* const> calls,
                                           kernels::Stream& stream);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_PREFILL_BATCH_H_
