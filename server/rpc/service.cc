#include "server/rpc/service.h"

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

grpc::ServerUnaryReactor* Service::GetServerInfo(grpc::CallbackServerContext* /*context*/,
                                                 const v1::GetServerInfoRequest* /*request*/,
                                                 v1::GetServerInfoResponse* response) {
  server_.info.Fill(*response);
  return Answered(absl::OkStatus());
}

grpc::ServerUnaryReactor* Service::CreateCache(grpc::CallbackServerContext* /*context*/,
                                               const v1::CreateCacheRequest* request,
                                               v1::CreateCacheResponse* response) {
  return Answered(rpc::CreateCache(server_.catalog, *request, *response));
}

grpc::ServerUnaryReactor* Service::DeleteCache(grpc::CallbackServerContext* /*context*/,
                                               const v1::DeleteCacheRequest* request,
                                               v1::DeleteCacheResponse* /*response*/) {
  auto* call = new UnaryCall;
  rpc::DeleteCache(server_.catalog, *request, AnswerOf(*call));
  return call;
}

grpc::ServerUnaryReactor* Service::ListCaches(grpc::CallbackServerContext* /*context*/,
                                              const v1::ListCachesRequest* /*request*/,
                                              v1::ListCachesResponse* response) {
  rpc::ListCaches(server_.catalog, *response);
  return Answered(absl::OkStatus());
}

grpc::ServerUnaryReactor* Service::OpenSession(grpc::CallbackServerContext* /*context*/,
                                               const v1::OpenSessionRequest* request,
                                               v1::OpenSessionResponse* response) {
  return Answered(rpc::OpenSession(server_.catalog, server_.expiry, *request, *response));
}

grpc::ServerUnaryReactor* Service::KeepAlive(grpc::CallbackServerContext* /*context*/,
                                             const v1::KeepAliveRequest* request, v1::KeepAliveResponse* response) {
  return Answered(rpc::KeepAlive(server_.catalog, *request, *response));
}

grpc::ServerUnaryReactor* Service::CloseSession(grpc::CallbackServerContext* /*context*/,
                                                const v1::CloseSessionRequest* request,
                                                v1::CloseSessionResponse* /*response*/) {
  auto* call = new UnaryCall;
  rpc::CloseSession(server_.catalog, *request, AnswerOf(*call));
  return call;
}

grpc::ServerUnaryReactor* Service::AcquireSlots(grpc::CallbackServerContext* context,
                                                const v1::AcquireSlotsRequest* request,
                                                v1::AcquireSlotsResponse* response) {
  auto* call = new UnaryCall;
  call->Run(
      rpc::AcquireSlots(server_.catalog, server_.engine, Deadline(*context), *request, *response, AnswerOf(*call)));
  return call;
}

grpc::ServerUnaryReactor* Service::ReleaseSlots(grpc::CallbackServerContext* context,
                                                const v1::ReleaseSlotsRequest* request,
                                                v1::ReleaseSlotsResponse* /*response*/) {
  auto* call = new UnaryCall;
  call->Run(rpc::ReleaseSlots(server_.catalog, server_.engine, Deadline(*context), *request, AnswerOf(*call)));
  return call;
}

grpc::ServerUnaryReactor* Service::ResetSlots(grpc::CallbackServerContext* context,
                                              const v1::ResetSlotsRequest* request,
                                              v1::ResetSlotsResponse* /*response*/) {
  auto* call = new UnaryCall;
  call->Run(rpc::ResetSlots(server_.catalog, server_.engine, Deadline(*context), *request, AnswerOf(*call)));
  return call;
}

grpc::ServerUnaryReactor* Service::CopySlots(grpc::CallbackServerContext* context, const v1::CopySlotsRequest* request,
                                             v1::CopySlotsResponse* /*response*/) {
  auto* call = new UnaryCall;
  call->Run(rpc::CopySlots(server_.catalog, server_.engine, Deadline(*context), *request, AnswerOf(*call)));
  return call;
}

grpc::ServerUnaryReactor* Service::ListSlots(grpc::CallbackServerContext* /*context*/,
                                             const v1::ListSlotsRequest* request, v1::ListSlotsResponse* response) {
  return Answered(rpc::ListSlots(server_.catalog, server_.clock, *request, *response));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* Service::ReadSlots(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request) {
  return HandleReadSlots(data_plane_, context, request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* Service::WriteSlots(grpc::CallbackServerContext* context,
                                                               grpc::ByteBuffer* response) {
  return HandleWriteSlots(data_plane_, context, response);
}

grpc::ServerUnaryReactor* Service::Prefill(grpc::CallbackServerContext* context, const v1::PrefillRequest* request,
                                           v1::PrefillResponse* response) {
  return HandlePrefill(data_plane_, context, request, response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Service::PrefillStream(
    grpc::CallbackServerContext* context) {
  return HandlePrefillStream(data_plane_, context);
}

}  // namespace gdpcache::rpc
