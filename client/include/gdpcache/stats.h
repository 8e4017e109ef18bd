#ifndef GDPCACHE_STATS_H_
#define GDPCACHE_STATS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

/// What a server does and has done; gdpcache/v1/stats.proto explains every field. Counters only grow, and start anew
/// with the server.
namespace gdpcache {

struct QueueStats {
  std::int64_t running = 0;
  std::int64_t waiting = 0;
};

struct PrefillStats {
  std::int64_t calls = 0;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  absl::Duration queue;
  absl::Duration stage_in;
  absl::Duration compute;
  absl::Duration stage_out;
};

struct SnapshotStats {
  std::int64_t stored = 0;
  std::int64_t evicted = 0;
  std::int64_t deleted = 0;
  std::int64_t abandoned = 0;
  std::int64_t lookup_hits = 0;
  std::int64_t lookup_misses = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t promotions = 0;
  std::int64_t demotions = 0;
  std::int64_t checksum_failures = 0;
  std::int64_t tier_errors = 0;
};

struct DurationBucket {
  std::optional<absl::Duration> limit;  // of the longest in it; nullopt in the last
  std::int64_t count = 0;
};

struct RpcOutcomes {
  int code = 0;  // gRPC's number; 0 is OK
  std::int64_t count = 0;
  absl::Duration duration;
  std::vector<DurationBucket> buckets;  // shortest first
};

struct RpcStats {
  std::string service;
  std::string method;
  std::int64_t active = 0;
  std::vector<RpcOutcomes> outcomes;
};

struct ServerStats {
  absl::Time started;
  absl::Duration uptime;
  bool draining = false;
  std::int64_t sessions = 0;
  QueueStats queue;
  PrefillStats prefills;
  SnapshotStats snapshots;
  std::vector<RpcStats> rpcs;  // by service and method
};

}  // namespace gdpcache

#endif  // GDPCACHE_STATS_H_
