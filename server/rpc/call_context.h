#ifndef GDPCACHE_SERVER_RPC_CALL_CONTEXT_H_
#define GDPCACHE_SERVER_RPC_CALL_CONTEXT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cache/snapshots/snapshot.h"
#include "server/engine/call.h"
#include "server/rpc/data_plane.h"

namespace gdpcache::rpc {

/// When the client stops waiting for a call, by cache::SteadyNow; InfiniteFuture if it does not.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

/// The session that a request names, its lease renewed, and the RPC's deadline. NOT_FOUND where the caller's tenant has
/// no such session.
absl::StatusOr<engine::CallContext> FindCaller(const DataPlane& plane, const grpc::CallbackServerContext& context,
                                               const std::string& session);

/// Where the caller's tenant keeps snapshots of the cache. NOT_FOUND without such a cache.
absl::StatusOr<cache::SnapshotSpace> FindSpace(const DataPlane& plane, const grpc::CallbackServerContext& context,
                                               const std::string& cache);

/// Charges memory that a request takes as long as its call lasts, `bytes` of it, to the staging memory for as long as
/// the account lives; nothing (nullptr) if it is so little that as many calls as there may be take a few megabytes.
/// RESOURCE_EXHAUSTED.
absl::StatusOr<std::shared_ptr<engine::StagingAccount>> ChargeRequest(const engine::Engine& engine, std::int64_t bytes,
                                                                      const std::shared_ptr<cache::TenantUse>& tenant);

/// The same where the session is not known yet.
absl::StatusOr<std::shared_ptr<engine::StagingAccount>> ChargeCaller(const DataPlane& plane,
                                                                     const grpc::CallbackServerContext& context,
                                                                     std::int64_t bytes);

/// What a call that its client gave up, or whose deadline has passed, ends with.
absl::Status ClientGone();

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CALL_CONTEXT_H_
