#ifndef GDPCACHE_SERVER_RPC_METRICS_RPC_METRICS_H_
#define GDPCACHE_SERVER_RPC_METRICS_RPC_METRICS_H_

#include <grpcpp/support/server_interceptor.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "gdpcache/v1/stats.pb.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace gdpcache::rpc {

/// Counts and times every RPC of a gRPC server:
///
///   rpc_server_duration_seconds{rpc_service, rpc_method, rpc_grpc_status_code}   from its arrival to its status
///   rpc_server_active_requests{rpc_service, rpc_method}
///
/// named after OpenTelemetry's conventions; the code is gRPC's number. An RPC that ends without a status, because its
/// client has gone, counts as CANCELLED; those of methods that the server does not have are all of one, "other".
/// Thread-safe.
class RpcMetrics {
 public:
  explicit RpcMetrics(prometheus::Registry& registry);
  ~RpcMetrics();

  /// For ServerBuilder::experimental().SetInterceptorCreators; this must outlive the server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptorFactory();

  google::protobuf::RepeatedPtrField<v1::RpcStats> Read() const;

 private:
  class Interceptor;
  class Factory;
  class Method;

  /// "/package.Service/Method". Every RPC asks: what it finds has been made once.
  Method& MethodOf(std::string_view path);

  prometheus::Family<prometheus::Histogram>& durations_;
  prometheus::Family<prometheus::Gauge>& active_;

  mutable std::shared_mutex mutex_;
  std::map<std::string, std::unique_ptr<Method>, std::less<>> methods_;  // by path
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_METRICS_RPC_METRICS_H_
