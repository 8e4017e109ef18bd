#include "server/rpc/control_plane.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/rpc/control/caches.h"
#include "server/rpc/control/sessions.h"
#include "server/rpc/control/slots.h"
#include "server/rpc/control/snapshots.h"
#include "server/rpc/snapshot_codec.h"
#include "server/rpc/unary_call.h"

namespace gdpcache::rpc {
namespace {

CallOrigin OriginOf(const Identity& caller, const grpc::CallbackServerContext& context) {
  return {caller.tenant, absl::FromChrono(context.deadline())};
}

grpc::ServerUnaryReactor* Answered(const absl::Status& status) {
  auto* call = new UnaryCall;
  call->Answer(status);
  return call;
}

CallDone AnswerOf(UnaryCall& call) {
  return [&call](const absl::Status& status) { call.Answer(status); };
}

/// What `handle` makes of the call, given who calls.
template <typename Handle>
grpc::ServerUnaryReactor* ForCaller(const ControlPlane& plane, const grpc::CallbackServerContext& context,
                                    const Handle& handle) {
  const absl::StatusOr<const Identity*> caller = plane.access.CallerOf(context);
  if (!caller.ok()) return Answered(caller.status());
  return handle(**caller);
}

}  // namespace

grpc::ServerUnaryReactor* HandleGetServerInfo(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                              const v1::GetServerInfoRequest* /*request*/,
                                              v1::GetServerInfoResponse* response) {
  plane.info.Fill(*response);
  return Answered(absl::OkStatus());
}

grpc::ServerUnaryReactor* HandleGetServerStats(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                               const v1::GetServerStatsRequest* /*request*/,
                                               v1::GetServerStatsResponse* response) {
  plane.stats.Fill(*response);
  return Answered(absl::OkStatus());
}

grpc::ServerUnaryReactor* HandleCreateCache(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                            const v1::CreateCacheRequest* request, v1::CreateCacheResponse* response) {
  return Answered(CreateCache(plane.catalog, *request, *response));
}

grpc::ServerUnaryReactor* HandleDeleteCache(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                            const v1::DeleteCacheRequest* request,
                                            v1::DeleteCacheResponse* /*response*/) {
  auto* call = new UnaryCall;
  DeleteCache(plane.catalog, *request, AnswerOf(*call));
  return call;
}

grpc::ServerUnaryReactor* HandleListCaches(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                           const v1::ListCachesRequest* /*request*/, v1::ListCachesResponse* response) {
  ListCaches(plane.catalog, *response);
  return Answered(absl::OkStatus());
}

grpc::ServerUnaryReactor* HandleOpenSession(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                            const v1::OpenSessionRequest* request, v1::OpenSessionResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    return Answered(OpenSession(plane.catalog, plane.expiry, caller.tenant, *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleKeepAlive(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::KeepAliveRequest* request, v1::KeepAliveResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    return Answered(KeepAlive(plane.catalog, caller.tenant, *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleCloseSession(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::CloseSessionRequest* request,
                                             v1::CloseSessionResponse* /*response*/) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    auto* call = new UnaryCall;
    CloseSession(plane.catalog, caller.tenant, *request, AnswerOf(*call));
    return call;
  });
}

grpc::ServerUnaryReactor* HandleAcquireSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::AcquireSlotsRequest* request,
                                             v1::AcquireSlotsResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    auto* call = new UnaryCall;
    call->Run(
        AcquireSlots(plane.catalog, plane.engine, OriginOf(caller, *context), *request, *response, AnswerOf(*call)));
    return call;
  });
}

grpc::ServerUnaryReactor* HandleReleaseSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::ReleaseSlotsRequest* request,
                                             v1::ReleaseSlotsResponse* /*response*/) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    auto* call = new UnaryCall;
    call->Run(ReleaseSlots(plane.catalog, plane.engine, OriginOf(caller, *context), *request, AnswerOf(*call)));
    return call;
  });
}

grpc::ServerUnaryReactor* HandleResetSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                           const v1::ResetSlotsRequest* request, v1::ResetSlotsResponse* /*response*/) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    auto* call = new UnaryCall;
    call->Run(ResetSlots(plane.catalog, plane.engine, OriginOf(caller, *context), *request, AnswerOf(*call)));
    return call;
  });
}

grpc::ServerUnaryReactor* HandleCopySlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::CopySlotsRequest* request, v1::CopySlotsResponse* /*response*/) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    auto* call = new UnaryCall;
    call->Run(CopySlots(plane.catalog, plane.engine, OriginOf(caller, *context), *request, AnswerOf(*call)));
    return call;
  });
}

grpc::ServerUnaryReactor* HandleListSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::ListSlotsRequest* request, v1::ListSlotsResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    return Answered(
        ListSlots(plane.catalog, plane.clock, caller.tenant, caller.May(Permission::kAdmin), *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleSaveSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                              const v1::SaveSnapshotsRequest* request,
                                              v1::SaveSnapshotsResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    auto* call = new UnaryCall;
    call->Run(SaveSnapshots(plane.snapshots, OriginOf(caller, *context), *request, *response, AnswerOf(*call)));
    return call;
  });
}

grpc::ServerUnaryReactor* HandleLookupPrefix(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::LookupPrefixRequest* request,
                                             v1::LookupPrefixResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    return Answered(LookupPrefix(plane.snapshots, caller.tenant, *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleRestoreSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::RestoreSnapshotsRequest* request,
                                                 v1::RestoreSnapshotsResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    auto* call = new UnaryCall;
    call->Run(RestoreSnapshots(plane.snapshots, OriginOf(caller, *context), *request, *response, AnswerOf(*call)));
    return call;
  });
}

grpc::ServerUnaryReactor* HandlePinSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::PinSnapshotsRequest* request,
                                             v1::PinSnapshotsResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    return Answered(PinSnapshots(plane.snapshots, caller.tenant, *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleUnpinSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                               const v1::UnpinSnapshotsRequest* request,
                                               v1::UnpinSnapshotsResponse* /*response*/) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    return Answered(UnpinSnapshots(plane.snapshots, caller.tenant, *request));
  });
}

grpc::ServerUnaryReactor* HandleDeleteSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                                const v1::DeleteSnapshotsRequest* request,
                                                v1::DeleteSnapshotsResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    auto* call = new UnaryCall;
    const absl::Status status = DeleteSnapshots(plane.snapshots, caller.tenant, *request, *response);
    if (status.ok()) {
      plane.snapshots.store.AfterDeletions(AnswerOf(*call));
    } else {
      call->Answer(status);
    }
    return call;
  });
}

grpc::ServerUnaryReactor* HandleListSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                              const v1::ListSnapshotsRequest* request,
                                              v1::ListSnapshotsResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    return Answered(ListSnapshots(plane.snapshots, caller.tenant, *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleQueryWriteStatus(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::QueryWriteStatusRequest* request,
                                                 v1::QueryWriteStatusResponse* response) {
  return ForCaller(plane, *context, [&](const Identity& caller) {
    const absl::StatusOr<cache::SnapshotSpace> space = SpaceOf(plane.catalog, request->cache(), caller.tenant);
    if (!space.ok()) return Answered(space.status());
    const absl::StatusOr<v1::QueryWriteStatusResponse> status = plane.uploads.Query(*space, request->upload());
    if (status.ok()) *response = *status;
    return Answered(status.status());
  });
}

}  // namespace gdpcache::rpc
