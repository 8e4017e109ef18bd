#include "client/library/stats.h"

namespace gdpcache::client {
namespace {

PrefillStats FromProto(const v1::PrefillStats& message) {
  return {message.calls(),
          message.tokens(),
          message.sequences(),
          absl::Microseconds(message.queue_us()),
          absl::Microseconds(message.stage_in_us()),
          absl::Microseconds(message.compute_us()),
          absl::Microseconds(message.stage_out_us())};
}

SnapshotStats FromProto(const v1::SnapshotStats& message) {
  return {message.stored(),      message.evicted(),           message.deleted(),    message.abandoned(),
          message.lookup_hits(), message.lookup_misses(),     message.hit_tokens(), message.promotions(),
          message.demotions(),   message.checksum_failures(), message.tier_errors()};
}

RpcOutcomes FromProto(const v1::RpcOutcomes& message) {
  RpcOutcomes outcomes;
  outcomes.code = message.code();
  outcomes.count = message.count();
  outcomes.duration = absl::Microseconds(message.duration_us());
  for (const v1::DurationBucket& bucket : message.buckets()) {
    DurationBucket& out = outcomes.buckets.emplace_back();
    if (bucket.limit_us() > 0) out.limit = absl::Microseconds(bucket.limit_us());
    out.count = bucket.count();
  }
  return outcomes;
}

RpcStats FromProto(const v1::RpcStats& message) {
  RpcStats stats;
  stats.service = message.service();
  stats.method = message.method();
  stats.active = message.active();
  for (const v1::RpcOutcomes& outcomes : message.outcomes()) stats.outcomes.push_back(FromProto(outcomes));
  return stats;
}

}  // namespace

ServerStats FromProto(const v1::GetServerStatsResponse& message) {
  ServerStats stats;
  stats.started = absl::FromUnixMillis(message.started_unix_ms());
  stats.uptime = absl::Microseconds(message.uptime_us());
  stats.draining = message.draining();
  stats.sessions = message.sessions();
  stats.queue = {message.queue().running(), message.queue().waiting()};
  stats.prefills = FromProto(message.prefills());
  stats.snapshots = FromProto(message.snapshots());
  for (const v1::RpcStats& rpc : message.rpcs()) stats.rpcs.push_back(FromProto(rpc));
  return stats;
}

}  // namespace gdpcache::client
