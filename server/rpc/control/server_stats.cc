#include "server/rpc/control/server_stats.h"

namespace gdpcache::rpc {
namespace {

v1::SnapshotStats Encode(const cache::SnapshotCounters& counters) {
  v1::SnapshotStats stats;
  stats.set_stored(counters.stored);
  stats.set_evicted(counters.evicted);
  stats.set_deleted(counters.deleted);
  stats.set_abandoned(counters.abandoned);
  stats.set_lookup_hits(counters.hits);
  stats.set_lookup_misses(counters.misses);
  stats.set_hit_tokens(counters.hit_tokens);
  stats.set_promotions(counters.promotions);
  stats.set_demotions(counters.demotions);
  stats.set_checksum_failures(counters.checksum_failures);
  stats.set_tier_errors(counters.tier_errors);
  return stats;
}

}  // namespace

void ServerStats::Fill(v1::GetServerStatsResponse& response) const {
  const std::chrono::steady_clock::duration uptime = std::chrono::steady_clock::now() - started_steady_;
  response.set_started_unix_ms(absl::ToUnixMillis(started_));
  response.set_uptime_us(std::chrono::duration_cast<std::chrono::microseconds>(uptime).count());
  response.set_draining(catalog_.draining());
  response.set_sessions(catalog_.session_count());
  const engine::Engine::Load load = engine_.load();
  response.mutable_queue()->set_running(load.running);
  response.mutable_queue()->set_waiting(load.waiting);
  *response.mutable_prefills() = metrics_.prefills.Read();
  *response.mutable_snapshots() = Encode(snapshots_.counters());
  *response.mutable_rpcs() = metrics_.rpcs.Read();
}

}  // namespace gdpcache::rpc
