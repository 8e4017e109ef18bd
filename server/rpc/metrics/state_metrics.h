#ifndef GDPCACHE_SERVER_RPC_METRICS_STATE_METRICS_H_
#define GDPCACHE_SERVER_RPC_METRICS_STATE_METRICS_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/device_memory.h"
#include "server/cache/catalog.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/engine.h"

namespace gdpcache::rpc {

/// What the server holds at the moment it is asked: caches, slots, sessions, memory, snapshots, and the process itself.
/// deploy/README.md lists every metric. Thread-safe; what it is made with must outlive it.
class StateMetrics final : public prometheus::Collectable {
 public:
  struct Build {
    std::string version;
    std::string commit;
    std::string backend;
    std::string device;
  };
  /// `device_memory` is asked by any thread; where it fails there are no such metrics.
  StateMetrics(const cache::Catalog& catalog, const cache::SnapshotStore& snapshots, const engine::Engine& engine,
               Build build, std::function<absl::StatusOr<kernels::DeviceMemory>()> device_memory);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const cache::Catalog& catalog_;
  const cache::SnapshotStore& snapshots_;
  const engine::Engine& engine_;
  const Build build_;
  const std::function<absl::StatusOr<kernels::DeviceMemory>()> device_memory_;
  const absl::Time started_ = absl::Now();
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_METRICS_STATE_METRICS_H_
