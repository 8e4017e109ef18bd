#ifndef GDPCACHE_SERVER_OPEN_SNAPSHOTS_H_
#define GDPCACHE_SERVER_OPEN_SNAPSHOTS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/cache/clock.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/cache/tenant_share.h"
#include "server/config/config.h"

namespace gdpcache {

/// The snapshot store with the tiers that are configured, and what its directory holds. The backend and the clock must
/// outlive it. `share` is what one tenant may have of the watchers. Errors say why the directory cannot be used.
absl::StatusOr<std::unique_ptr<cache::SnapshotStore>> OpenSnapshots(const config::SnapshotConfig& config,
                                                                    kernels::Backend& backend,
                                                                    const cache::Clock& clock,
                                                                    cache::TenantShare share);

}  // namespace gdpcache

#endif  // GDPCACHE_SERVER_OPEN_SNAPSHOTS_H_
