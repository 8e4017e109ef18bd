#ifndef GDPCACHE_SERVER_OBSERVE_METRICS_ENDPOINT_H_
#define GDPCACHE_SERVER_OBSERVE_METRICS_ENDPOINT_H_

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace gdpcache::observe {

/// Serves metrics to Prometheus: GET /metrics over plain HTTP. Thread-safe.
class MetricsEndpoint {
 public:
  /// Serves `sources` on `address` ("host:port"; port 0 takes a free one) when it returns. UNAVAILABLE names the
  /// address that cannot be had.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& address, std::vector<std::shared_ptr<prometheus::Collectable>> sources);
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;
  ~MetricsEndpoint();

  /// "host:port" with the real port.
  const std::string& address() const { return address_; }

 private:
  MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer, std::string address,
                  std::vector<std::shared_ptr<prometheus::Collectable>> sources)
      : sources_(std::move(sources)), exposer_(std::move(exposer)), address_(std::move(address)) {}

  const std::vector<std::shared_ptr<prometheus::Collectable>> sources_;  // the exposer does not keep them
  std::unique_ptr<prometheus::Exposer> exposer_;
  const std::string address_;
};

}  // namespace gdpcache::observe

#endif  // GDPCACHE_SERVER_OBSERVE_METRICS_ENDPOINT_H_
