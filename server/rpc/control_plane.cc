#include "server/rpc/control_plane.h"

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/rpc/control/caches.h"
#include "server/rpc/control/sessions.h"
#include "server/rpc/control/slots.h"
#include "server/rpc/unary_call.h"

namespace gdpcache::rpc {
namespace {

absl::Time Deadline(const grpc::CallbackServerContext& context) { return absl::FromChrono(context.deadline()); }

grpc::ServerUnaryReactor* Answered(const absl::Status& status) {
  auto* call = new UnaryCall;
  call->Answer(status);
  return call;
}

CallDone AnswerOf(UnaryCall& call) {
  return [&call](const absl::Status& status) { call.Answer(status); };
}

}  // namespace

grpc::ServerUnaryReactor* HandleGetServerInfo(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                              const v1::GetServerInfoRequest* /*request*/,
                                              v1::GetServerInfoResponse* response) {
  plane.info.Fill(*response);
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

grpc::ServerUnaryReactor* HandleOpenSession(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                            const v1::OpenSessionRequest* request, v1::OpenSessionResponse* response) {
  return Answered(OpenSession(plane.catalog, plane.expiry, *request, *response));
}

grpc::ServerUnaryReactor* HandleKeepAlive(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                          const v1::KeepAliveRequest* request, v1::KeepAliveResponse* response) {
  return Answered(KeepAlive(plane.catalog, *request, *response));
}

grpc::ServerUnaryReactor* HandleCloseSession(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                             const v1::CloseSessionRequest* request,
                                             v1::CloseSessionResponse* /*response*/) {
  auto* call = new UnaryCall;
  CloseSession(plane.catalog, *request, AnswerOf(*call));
  return call;
}

grpc::ServerUnaryReactor* HandleAcquireSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::AcquireSlotsRequest* request,
                                             v1::AcquireSlotsResponse* response) {
  auto* call = new UnaryCall;
  call->Run(AcquireSlots(plane.catalog, plane.engine, Deadline(*context), *request, *response, AnswerOf(*call)));
  return call;
}

grpc::ServerUnaryReactor* HandleReleaseSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                             const v1::ReleaseSlotsRequest* request,
                                             v1::ReleaseSlotsResponse* /*response*/) {
  auto* call = new UnaryCall;
  call->Run(ReleaseSlots(plane.catalog, plane.engine, Deadline(*context), *request, AnswerOf(*call)));
  return call;
}

grpc::ServerUnaryReactor* HandleResetSlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                           const v1::ResetSlotsRequest* request, v1::ResetSlotsResponse* /*response*/) {
  auto* call = new UnaryCall;
  call->Run(ResetSlots(plane.catalog, plane.engine, Deadline(*context), *request, AnswerOf(*call)));
  return call;
}

grpc::ServerUnaryReactor* HandleCopySlots(const ControlPlane& plane, grpc::CallbackServerContext* context,
                                          const v1::CopySlotsRequest* request, v1::CopySlotsResponse* /*response*/) {
  auto* call = new UnaryCall;
  call->Run(CopySlots(plane.catalog, plane.engine, Deadline(*context), *request, AnswerOf(*call)));
  return call;
}

grpc::ServerUnaryReactor* HandleListSlots(const ControlPlane& plane, grpc::CallbackServerContext* /*context*/,
                                          const v1::ListSlotsRequest* request, v1::ListSlotsResponse* response) {
  return Answered(ListSlots(plane.catalog, plane.clock, *request, *response));
}

}  // namespace gdpcache::rpc
