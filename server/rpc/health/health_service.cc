#include "server/rpc/health/health_service.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "gdpcache/v1/state_cache.grpc.pb.h"  // brings gRPC's handlers, wherever its version has them

namespace gdpcache::rpc {
namespace {

using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
using Method = grpc::internal::RpcServiceMethod;

}  // namespace

HealthService::HealthService(Health& health) {
  // Streams to this side: gRPC does not wait for the message of such a call before it shows it.
  AddMethod(new Method("/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodRawCallback(
      0, new Handler([&health](grpc::CallbackServerContext* context) { return HandleHealthCheck(health, context); }));
  AddMethod(new Method("/grpc.health.v1.Health/Watch", grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodRawCallback(
      1, new Handler([&health](grpc::CallbackServerContext* context) { return HandleHealthWatch(health, context); }));
}

}  // namespace gdpcache::rpc
