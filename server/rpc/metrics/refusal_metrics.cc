#include "server/rpc/metrics/refusal_metrics.h"

#include "server/engine/overload.h"

namespace gdpcache::rpc {

RefusalMetrics::RefusalMetrics(prometheus::Registry& registry)
    : calls_(prometheus::BuildCounter()
                 .Name("gdpcache_refused_calls_total")
                 .Help("Calls refused for who they are, or for want of room.")
                 .Register(registry)),
      unauthenticated_(calls_.Add({{"reason", "unauthenticated"}})),
      permission_denied_(calls_.Add({{"reason", "permission_denied"}})),
      overload_(calls_.Add({{"reason", "overload"}})),
      limit_(calls_.Add({{"reason", "limit"}})),
      unavailable_(calls_.Add({{"reason", "unavailable"}})) {}

void RefusalMetrics::Count(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnauthenticated:
      return unauthenticated_.Increment();
    case absl::StatusCode::kPermissionDenied:
      return permission_denied_.Increment();
    case absl::StatusCode::kResourceExhausted:
      return engine::IsOverload(status) ? overload_.Increment() : limit_.Increment();
    case absl::StatusCode::kUnavailable:
      return unavailable_.Increment();
    default:
      return;
  }
}

}  // namespace gdpcache::rpc
