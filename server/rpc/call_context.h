#ifndef GDPCACHE_SERVER_RPC_CALL_CONTEXT_H_
#define GDPCACHE_SERVER_RPC_CALL_CONTEXT_H_

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cache/snapshots/snapshot.h"
#include "server/engine/call.h"
#include "server/rpc/data_plane.h"

namespace gdpcache::rpc {

/// The session that a request names, its lease renewed, and the RPC's deadline. NOT_FOUND where the caller's tenant has
/// no such session.
absl::StatusOr<engine::CallContext> FindCaller(const DataPlane& plane, const grpc::CallbackServerContext& context,
                                               const std::string& session);

/// Where the caller's tenant keeps snapshots of the cache. NOT_FOUND without such a cache.
absl::StatusOr<cache::SnapshotSpace> FindSpace(const DataPlane& plane, const grpc::CallbackServerContext& context,
                                               const std::string& cache);

/// What a call that its client gave up, or whose deadline has passed, ends with.
absl::Status ClientGone();

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CALL_CONTEXT_H_
