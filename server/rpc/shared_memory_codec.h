#ifndef GDPCACHE_SERVER_RPC_SHARED_MEMORY_CODEC_H_
#define GDPCACHE_SERVER_RPC_SHARED_MEMORY_CODEC_H_

#include "absl/status/status.h"
#include "gdpcache/v1/prefill.pb.h"
#include "server/cache/memory/session_regions.h"
#include "server/engine/prefill_request.h"

namespace gdpcache::rpc {

/// Finds the regions and events that `request` names and puts them into `decoded`, which keeps them. NOT_FOUND when the
/// session has none of the name; whether the places lie inside is the engine's to check.
absl::Status FindSharedMemory(const v1::PrefillRequest& request, const cache::SessionRegions& regions,
                              engine::PrefillRequest& decoded);

/// Says in the described results which of them are in shared memory.
void DescribePlaces(const v1::OutputDestinations& outputs, v1::PrefillResponse& response);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_SHARED_MEMORY_CODEC_H_
