#ifndef GDPCACHE_SERVER_RPC_METRICS_SERVER_METRICS_H_
#define GDPCACHE_SERVER_RPC_METRICS_SERVER_METRICS_H_

#include <prometheus/registry.h>

#include <memory>

#include "server/rpc/metrics/prefill_metrics.h"
#include "server/rpc/metrics/refusal_metrics.h"
#include "server/rpc/metrics/rpc_metrics.h"

namespace gdpcache::rpc {

/// What is counted while the server works, always: Prometheus and GetServerStats read it. What the server holds is
/// StateMetrics's business.
struct ServerMetrics {
  const std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  RpcMetrics rpcs{*registry};
  PrefillMetrics prefills{*registry};
  RefusalMetrics refusals{*registry};
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_METRICS_SERVER_METRICS_H_
