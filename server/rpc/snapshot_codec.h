#ifndef GDPCACHE_SERVER_RPC_SNAPSHOT_CODEC_H_
#define GDPCACHE_SERVER_RPC_SNAPSHOT_CODEC_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gdpcache/v1/snapshot.pb.h"
#include "server/cache/catalog.h"
#include "server/cache/snapshots/snapshot_store.h"

namespace gdpcache::rpc {

/// The space of a cache for a tenant. NOT_FOUND without such a cache.
absl::StatusOr<cache::SnapshotSpace> SpaceOf(const cache::Catalog& catalog, const std::string& cache,
                                             const std::string& tenant);

v1::SnapshotTier EncodeTier(cache::TierKind tier);
v1::Snapshot EncodeSnapshot(const cache::SnapshotSummary& snapshot, absl::Time now);
v1::SnapshotOutcome EncodeOutcome(const cache::SnapshotOutcome& outcome);
v1::SnapshotEvent EncodeEvent(const cache::SnapshotEvent& event);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_SNAPSHOT_CODEC_H_
