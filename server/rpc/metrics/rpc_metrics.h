#ifndef GDPCACHE_SERVER_RPC_METRICS_RPC_METRICS_H_
#define GDPCACHE_SERVER_RPC_METRICS_RPC_METRICS_H_

#include <grpcpp/support/server_interceptor.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>

namespace gdpcache::rpc {

/// Counts and times every RPC of a gRPC server:
///
///   rpc_server_duration_seconds{rpc_service, rpc_method, rpc_grpc_status_code}   from its arrival to its status
///   rpc_server_active_requests{rpc_service, rpc_method}
///
/// named after OpenTelemetry's conventions; the code is gRPC's number. An RPC that ends without a status, because its
/// client has gone, counts as CANCELLED. Thread-safe.
class RpcMetrics {
 public:
  explicit RpcMetrics(prometheus::Registry& registry);

  /// For ServerBuilder::experimental().SetInterceptorCreators; this must outlive the server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptorFactory();

 private:
  class Interceptor;
  class Factory;

  prometheus::Family<prometheus::Histogram>& durations_;
  prometheus::Family<prometheus::Gauge>& active_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_METRICS_RPC_METRICS_H_
