#ifndef GDPCACHE_SERVER_RPC_CONTROL_SERVER_STATS_H_
#define GDPCACHE_SERVER_RPC_CONTROL_SERVER_STATS_H_

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gdpcache/v1/stats.pb.h"
#include "server/cache/catalog.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/engine.h"
#include "server/rpc/metrics/server_metrics.h"

namespace gdpcache::rpc {

/// Answers GetServerStats. Thread-safe; what it is made with must outlive it.
class ServerStats {
 public:
  ServerStats(const cache::Catalog& catalog, const engine::Engine& engine, const cache::SnapshotStore& snapshots,
              const ServerMetrics& metrics)
      : catalog_(catalog), engine_(engine), snapshots_(snapshots), metrics_(metrics) {}

  void Fill(v1::GetServerStatsResponse& response) const;

 private:
  const cache::Catalog& catalog_;
  const engine::Engine& engine_;
  const cache::SnapshotStore& snapshots_;
  const ServerMetrics& metrics_;
  const absl::Time started_ = absl::Now();
  const std::chrono::steady_clock::time_point started_steady_ = std::chrono::steady_clock::now();  // nobody sets it
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CONTROL_SERVER_STATS_H_
