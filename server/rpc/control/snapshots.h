#ifndef GDPCACHE_SERVER_RPC_CONTROL_SNAPSHOTS_H_
#define GDPCACHE_SERVER_RPC_CONTROL_SNAPSHOTS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gdpcache/v1/snapshot.pb.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/engine.h"
#include "server/rpc/control/slots.h"

/// The calls about snapshots, but for the streams; snapshot.proto documents them.
namespace gdpcache::rpc {

/// What the calls work on; outlives them.
struct SnapshotPlane {
  cache::Catalog& catalog;
  cache::SnapshotStore& store;
  const engine::Engine& engine;
  const cache::Clock& clock;
  absl::Duration max_pin_ttl;
};

/// These prepare a call of the engine, as those of control/slots.h do.
absl::StatusOr<std::shared_ptr<engine::Call>> SaveSnapshots(const SnapshotPlane& plane, const CallOrigin& origin,
                                                            const v1::SaveSnapshotsRequest& request,
                                                            v1::SaveSnapshotsResponse& response, CallDone done);
absl::StatusOr<std::shared_ptr<engine::Call>> RestoreSnapshots(const SnapshotPlane& plane, const CallOrigin& origin,
                                                               const v1::RestoreSnapshotsRequest& request,
                                                               v1::RestoreSnapshotsResponse& response, CallDone done);

absl::Status LookupPrefix(const SnapshotPlane& plane, const std::string& tenant, const v1::LookupPrefixRequest& request,
                          v1::LookupPrefixResponse& response);
absl::Status PinSnapshots(const SnapshotPlane& plane, const std::string& tenant, const v1::PinSnapshotsRequest& request,
                          v1::PinSnapshotsResponse& response);
absl::Status UnpinSnapshots(const SnapshotPlane& plane, const std::string& tenant,
                            const v1::UnpinSnapshotsRequest& request);
absl::Status DeleteSnapshots(const SnapshotPlane& plane, const std::string& tenant,
                             const v1::DeleteSnapshotsRequest& request, v1::DeleteSnapshotsResponse& response);
absl::Status ListSnapshots(const SnapshotPlane& plane, const std::string& tenant,
                           const v1::ListSnapshotsRequest& request, ChargeAnswer charge,
                           v1::ListSnapshotsResponse& response);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CONTROL_SNAPSHOTS_H_
