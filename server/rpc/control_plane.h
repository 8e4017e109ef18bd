#ifndef GDPCACHE_SERVER_RPC_CONTROL_PLANE_H_
#define GDPCACHE_SERVER_RPC_CONTROL_PLANE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "gdpcache/v1/cache.pb.h"
#include "gdpcache/v1/session.pb.h"
#include "gdpcache/v1/snapshot.pb.h"
#include "gdpcache/v1/stats.pb.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"
#include "server/cache/task_thread.h"
#include "server/engine/engine.h"
#include "server/rpc/access/access_control.h"
#include "server/rpc/call_log.h"
#include "server/rpc/control/server_info.h"
#include "server/rpc/control/server_stats.h"
#include "server/rpc/control/snapshots.h"
#include "server/rpc/deadline_thread.h"
#include "server/rpc/snapshot_uploads.h"

/// The calls about caches, sessions, whole slots and snapshots. Each function takes over one RPC and returns its
/// reactor, which deletes itself when the RPC is over.
namespace gdpcache::rpc {

/// What the calls work on; outlives them, and the server that they belong to.
struct ControlPlane {
  cache::Catalog& catalog;
  engine::Engine& engine;
  cache::TaskThread& thread;
  const cache::Clock& clock;
  DeadlineThread& expiry;
  const ServerInfo& info;
  const ServerStats& stats;
  SnapshotPlane snapshots;
  SnapshotUploads& uploads;
  const AccessControl& access;
  CallLog& log;
};

grpc::ServerUnaryReactor* HandleGetServerInfo(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                              const v1::GetServerInfoRequest* request,
                                              v1::GetServerInfoResponse* response);
grpc::ServerUnaryReactor* HandleGetServerStats(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                               const v1::GetServerStatsRequest* request,
                                               v1::GetServerStatsResponse* response);
grpc::ServerUnaryReactor* HandleCreateCache(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                            const v1::CreateCacheRequest* request, v1::CreateCacheResponse* response);
grpc::ServerUnaryReactor* HandleDeleteCache(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                            const v1::DeleteCacheRequest* request, v1::DeleteCacheResponse* response);
grpc::ServerUnaryReactor* HandleListCaches(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                           const v1::ListCachesRequest* request, v1::ListCachesResponse* response);
grpc::ServerUnaryReactor* HandleOpenSession(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                            const v1::OpenSessionRequest* request, v1::OpenSessionResponse* response);
grpc::ServerUnaryReactor* HandleKeepAlive(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::KeepAliveRequest* request, v1::KeepAliveResponse* response);
grpc::ServerUnaryReactor* HandleCloseSession(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::CloseSessionRequest* request,
                                             v1::CloseSessionResponse* response);
grpc::ServerUnaryReactor* HandleAcquireSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::AcquireSlotsRequest* request,
                                             v1::AcquireSlotsResponse* response);
grpc::ServerUnaryReactor* HandleReleaseSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::ReleaseSlotsRequest* request,
                                             v1::ReleaseSlotsResponse* response);
grpc::ServerUnaryReactor* HandleResetSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                           const v1::ResetSlotsRequest* request, v1::ResetSlotsResponse* response);
grpc::ServerUnaryReactor* HandleCopySlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::CopySlotsRequest* request, v1::CopySlotsResponse* response);
grpc::ServerUnaryReactor* HandleListSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::ListSlotsRequest* request, v1::ListSlotsResponse* response);
grpc::ServerUnaryReactor* HandleSaveSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                              const v1::SaveSnapshotsRequest* request,
                                              v1::SaveSnapshotsResponse* response);
grpc::ServerUnaryReactor* HandleLookupPrefix(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::LookupPrefixRequest* request,
                                             v1::LookupPrefixResponse* response);
grpc::ServerUnaryReactor* HandleRestoreSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::RestoreSnapshotsRequest* request,
                                                 v1::RestoreSnapshotsResponse* response);
grpc::ServerUnaryReactor* HandlePinSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::PinSnapshotsRequest* request,
                                             v1::PinSnapshotsResponse* response);
grpc::ServerUnaryReactor* HandleUnpinSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                               const v1::UnpinSnapshotsRequest* request,
                                               v1::UnpinSnapshotsResponse* response);
grpc::ServerUnaryReactor* HandleDeleteSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                                const v1::DeleteSnapshotsRequest* request,
                                                v1::DeleteSnapshotsResponse* response);
grpc::ServerUnaryReactor* HandleListSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                              const v1::ListSnapshotsRequest* request,
                                              v1::ListSnapshotsResponse* response);
grpc::ServerUnaryReactor* HandleQueryWriteStatus(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::QueryWriteStatusRequest* request,
                                                 v1::QueryWriteStatusResponse* response);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CONTROL_PLANE_H_
