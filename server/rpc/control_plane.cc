#include "server/rpc/control_plane.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rpc/call_context.h"
#include "server/rpc/control/caches.h"
#include "server/rpc/control/sessions.h"
#include "server/rpc/control/slots.h"
#include "server/rpc/control/snapshots.h"
#include "server/rpc/snapshot_codec.h"
#include "server/rpc/unary_call.h"

namespace gdpcache::rpc {
namespace {

CallOrigin OriginOf(const Identity& caller, const grpc::CallbackServerContext& context) {
  return {caller.tenant, DeadlineOf(context)};
}

CallDone AnswerOf(UnaryCall& call) {
  return [&call](const absl::Status& status) { call.Answer(status); };
}

/// An answer of so few bytes is not counted: one that tells of a server without load must come when there is some.
constexpr std::int64_t kSmallAnswer = std::int64_t{64} << 10;

/// Counts what an answer takes as its tenant's, in the staging memory: until the client takes it, it stays.
absl::Status Charge(const ControlPlane& plane, const std::string& tenant, std::int64_t bytes, UnaryCall& call) {
  if (bytes <= kSmallAnswer) return absl::OkStatus();
  auto account = plane.engine.Charge(bytes, cache::BudgetOf(plane.catalog.UseOf(tenant), &cache::TenantUse::staging));
  if (!account.ok()) return account.status();
  call.Keep(*std::move(account));
  return absl::OkStatus();
}

/// Sends an answer that has been made for whoever asks.
template <typename Response>
void AnswerWith(const ControlPlane& plane, const grpc::CallbackServerContext& context, Response& response,
                UnaryCall& call) {
  // As an object it takes about twice as much as on its way.
  const std::int64_t bytes = 3 * static_cast<std::int64_t>(response.ByteSizeLong());
  absl::Status status;
  if (bytes > kSmallAnswer) {
    const absl::StatusOr<const Identity*> caller = plane.access.CallerOf(context);
    status = caller.ok() ? Charge(plane, (*caller)->tenant, bytes, call) : caller.status();
  }
  if (!status.ok()) response.Clear();
  call.Answer(status);
}

/// A call in which the caller plays no part.
UnaryCall* NewCall(const ControlPlane& plane, absl::string_view method, grpc::CallbackServerContext& context,
                   absl::string_view cache = "") {
  auto* call = new UnaryCall(plane.log, method, context);
  call->rpc().SetCache(cache);
  return call;
}

/// Has `handle` run or answer the call, given who calls.
template <typename Request, typename Handle>
grpc::ServerUnaryReactor* ForCaller(const ControlPlane& plane, absl::string_view method,
                                    grpc::CallbackServerContext& context, const Request& request,
                                    const Handle& handle) {
  auto* call = new UnaryCall(plane.log, method, context);
  const absl::StatusOr<const Identity*> caller = plane.access.CallerOf(context);
  if (!caller.ok()) {
    call->Answer(caller.status());
    return call;
  }
  if constexpr (requires { request.session(); }) {
    const auto session = plane.catalog.FindSession(request.session(), (*caller)->tenant);
    if (session.ok()) call->rpc().SetSession(**session);
  } else {
    call->rpc().SetCache(request.cache());
  }
  handle(**caller, *call);
  return call;
}

}  // namespace

grpc::ServerUnaryReactor* HandleGetServerInfo(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                              const v1::GetServerInfoRequest* /*request*/,
                                              v1::GetServerInfoResponse* response) {
  auto* call = NewCall(plane, "GetServerInfo", *context);
  plane.info.Fill(*response);
  AnswerWith(plane, *context, *response, *call);
  return call;
}

grpc::ServerUnaryReactor* HandleGetServerStats(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                               const v1::GetServerStatsRequest* /*request*/,
                                               v1::GetServerStatsResponse* response) {
  auto* call = NewCall(plane, "GetServerStats", *context);
  plane.stats.Fill(*response);
  call->Answer(absl::OkStatus());
  return call;
}

grpc::ServerUnaryReactor* HandleCreateCache(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                            const v1::CreateCacheRequest* request, v1::CreateCacheResponse* response) {
  auto* call = NewCall(plane, "CreateCache", *context, request->name());
  const absl::StatusOr<const Identity*> caller = plane.access.CallerOf(*context);
  if (!caller.ok()) {
    call->Answer(caller.status());
    return call;
  }
  // The request and the response live until the call is answered.
  plane.thread.Run([&catalog = plane.catalog, call, tenant = (*caller)->tenant, request, response] {
    call->Answer(CreateCache(catalog, tenant, *request, *response));
  });
  return call;
}

grpc::ServerUnaryReactor* HandleDeleteCache(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                            const v1::DeleteCacheRequest* request,
                                            v1::DeleteCacheResponse* /*response*/) {
  auto* call = NewCall(plane, "DeleteCache", *context, request->name());
  DeleteCache(plane.catalog, *request, AnswerOf(*call));
  return call;
}

grpc::ServerUnaryReactor* HandleListCaches(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                           const v1::ListCachesRequest* /*request*/, v1::ListCachesResponse* response) {
  auto* call = NewCall(plane, "ListCaches", *context);
  ListCaches(plane.catalog, *response);
  AnswerWith(plane, *context, *response, *call);
  return call;
}

grpc::ServerUnaryReactor* HandleOpenSession(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                            const v1::OpenSessionRequest* request, v1::OpenSessionResponse* response) {
  return ForCaller(plane, "OpenSession", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Answer(OpenSession(plane.catalog, plane.expiry, caller.tenant, *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleKeepAlive(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::KeepAliveRequest* request, v1::KeepAliveResponse* response) {
  return ForCaller(plane, "KeepAlive", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Answer(KeepAlive(plane.catalog, caller.tenant, *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleCloseSession(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::CloseSessionRequest* request,
                                             v1::CloseSessionResponse* /*response*/) {
  return ForCaller(plane, "CloseSession", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    CloseSession(plane.catalog, caller.tenant, *request, AnswerOf(call));
  });
}

grpc::ServerUnaryReactor* HandleAcquireSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::AcquireSlotsRequest* request,
                                             v1::AcquireSlotsResponse* response) {
  return ForCaller(plane, "AcquireSlots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Run(
        AcquireSlots(plane.catalog, plane.engine, OriginOf(caller, *context), *request, *response, AnswerOf(call)));
  });
}

grpc::ServerUnaryReactor* HandleReleaseSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::ReleaseSlotsRequest* request,
                                             v1::ReleaseSlotsResponse* /*response*/) {
  return ForCaller(plane, "ReleaseSlots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Run(ReleaseSlots(plane.catalog, plane.engine, OriginOf(caller, *context), *request, AnswerOf(call)));
  });
}

grpc::ServerUnaryReactor* HandleResetSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                           const v1::ResetSlotsRequest* request, v1::ResetSlotsResponse* /*response*/) {
  return ForCaller(plane, "ResetSlots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Run(ResetSlots(plane.catalog, plane.engine, OriginOf(caller, *context), *request, AnswerOf(call)));
  });
}

grpc::ServerUnaryReactor* HandleCopySlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::CopySlotsRequest* request, v1::CopySlotsResponse* /*response*/) {
  return ForCaller(plane, "CopySlots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Run(CopySlots(plane.catalog, plane.engine, OriginOf(caller, *context), *request, AnswerOf(call)));
  });
}

grpc::ServerUnaryReactor* HandleListSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::ListSlotsRequest* request, v1::ListSlotsResponse* response) {
  return ForCaller(plane, "ListSlots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    const auto charge = [&](std::int64_t bytes) { return Charge(plane, caller.tenant, bytes, call); };
    call.Answer(ListSlots(plane.catalog, plane.clock, caller.tenant, caller.May(Permission::kAdmin), *request, charge,
                          *response));
  });
}

grpc::ServerUnaryReactor* HandleSaveSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                              const v1::SaveSnapshotsRequest* request,
                                              v1::SaveSnapshotsResponse* response) {
  return ForCaller(plane, "SaveSnapshots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Run(SaveSnapshots(plane.snapshots, OriginOf(caller, *context), *request, *response, AnswerOf(call)));
  });
}

grpc::ServerUnaryReactor* HandleLookupPrefix(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::LookupPrefixRequest* request,
                                             v1::LookupPrefixResponse* response) {
  return ForCaller(plane, "LookupPrefix", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Answer(LookupPrefix(plane.snapshots, caller.tenant, *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleRestoreSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::RestoreSnapshotsRequest* request,
                                                 v1::RestoreSnapshotsResponse* response) {
  return ForCaller(plane, "RestoreSnapshots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Run(RestoreSnapshots(plane.snapshots, OriginOf(caller, *context), *request, *response, AnswerOf(call)));
  });
}

grpc::ServerUnaryReactor* HandlePinSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::PinSnapshotsRequest* request,
                                             v1::PinSnapshotsResponse* response) {
  return ForCaller(plane, "PinSnapshots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Answer(PinSnapshots(plane.snapshots, caller.tenant, *request, *response));
  });
}

grpc::ServerUnaryReactor* HandleUnpinSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                               const v1::UnpinSnapshotsRequest* request,
                                               v1::UnpinSnapshotsResponse* /*response*/) {
  return ForCaller(plane, "UnpinSnapshots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    call.Answer(UnpinSnapshots(plane.snapshots, caller.tenant, *request));
  });
}

grpc::ServerUnaryReactor* HandleDeleteSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                                const v1::DeleteSnapshotsRequest* request,
                                                v1::DeleteSnapshotsResponse* response) {
  return ForCaller(plane, "DeleteSnapshots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    const absl::Status status = DeleteSnapshots(plane.snapshots, caller.tenant, *request, *response);
    if (!status.ok()) return call.Answer(status);
    plane.snapshots.store.AfterDeletions(AnswerOf(call));
  });
}

grpc::ServerUnaryReactor* HandleListSnapshots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                              const v1::ListSnapshotsRequest* request,
                                              v1::ListSnapshotsResponse* response) {
  return ForCaller(plane, "ListSnapshots", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    const auto charge = [&](std::int64_t bytes) { return Charge(plane, caller.tenant, bytes, call); };
    call.Answer(ListSnapshots(plane.snapshots, caller.tenant, *request, charge, *response));
  });
}

grpc::ServerUnaryReactor* HandleQueryWriteStatus(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::QueryWriteStatusRequest* request,
                                                 v1::QueryWriteStatusResponse* response) {
  return ForCaller(plane, "QueryWriteStatus", *context, *request, [&](const Identity& caller, UnaryCall& call) {
    const absl::StatusOr<cache::SnapshotSpace> space = SpaceOf(plane.catalog, request->cache(), caller.tenant);
    if (!space.ok()) return call.Answer(space.status());
    const absl::StatusOr<v1::QueryWriteStatusResponse> status = plane.uploads.Query(*space, request->upload());
    if (status.ok()) *response = *status;
    call.Answer(status.status());
  });
}

}  // namespace gdpcache::rpc
