#ifndef GDPCACHE_SERVER_RPC_HEALTH_HEALTH_SERVICE_H_
#define GDPCACHE_SERVER_RPC_HEALTH_HEALTH_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include "server/rpc/health/health.h"

namespace gdpcache::rpc {

/// grpc.health.v1.Health for one server: hands every call to the function that does it, and nothing else: its file,
/// which contains gRPC's handlers, is compiled without ThreadSanitizer (see CMakeLists.txt).
class HealthService final : public grpc::Service {
 public:
  /// `health` must outlive this, which must outlive the server.
  explicit HealthService(Health& health);
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_HEALTH_HEALTH_SERVICE_H_
