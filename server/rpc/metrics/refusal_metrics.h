#ifndef GDPCACHE_SERVER_RPC_METRICS_REFUSAL_METRICS_H_
#define GDPCACHE_SERVER_RPC_METRICS_REFUSAL_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include "absl/status/status.h"

namespace gdpcache::rpc {

/// Calls that the server refused although nothing was wrong with them, those included that never reached a handler:
///
///   gdpcache_refused_calls_total{reason="unauthenticated" | "permission_denied" | "overload" | "limit" |
///   "unavailable"}
///
/// "overload" is too much to do at once, "limit" too much to keep, "unavailable" a server that drains or has lost its
/// device. Thread-safe.
class RefusalMetrics {
 public:
  explicit RefusalMetrics(prometheus::Registry& registry);

  /// Counts a call that ended with this status, if that is a refusal. Once for each call.
  void Count(const absl::Status& status);

 private:
  prometheus::Family<prometheus::Counter>& calls_;
  prometheus::Counter& unauthenticated_;
  prometheus::Counter& permission_denied_;
  prometheus::Counter& overload_;
  prometheus::Counter& limit_;
  prometheus::Counter& unavailable_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_METRICS_REFUSAL_METRICS_H_
