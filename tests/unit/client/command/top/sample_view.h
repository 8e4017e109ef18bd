#ifndef GDPCACHE_TESTS_UNIT_CLIENT_COMMAND_TOP_SAMPLE_VIEW_H_
#define GDPCACHE_TESTS_UNIT_CLIENT_COMMAND_TOP_SAMPLE_VIEW_H_

#include "client/command/top/model.h"

namespace gdpcache::command::top {

/// Of the durations up to 1 ms, up to 10 ms, and longer.
inline RpcOutcomes Outcomes(int code, std::int64_t fast, std::int64_t slow, std::int64_t slowest) {
  RpcOutcomes outcomes;
  outcomes.code = code;
  outcomes.count = fast + slow + slowest;
  outcomes.buckets = {{absl::Milliseconds(1), fast}, {absl::Milliseconds(10), slow}, {std::nullopt, slowest}};
  return outcomes;
}

inline RpcStats Rpc(const std::string& method, std::int64_t active, std::vector<RpcOutcomes> outcomes) {
  return {"gdpcache.v1.StateCache", method, active, std::move(outcomes)};
}

/// A server that has been up for an hour.
inline Answer SampleAnswer() {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  Answer answer;
  ServerInfo& info = answer.info;
  info.version = "1.2.3";
  info.backend = "cuda";
  info.device = "NVIDIA H200";
  info.state_memory_used_bytes = 48 * kGiB;
  info.staging_used_bytes = kGiB / 2;
  info.limits.state_memory_bytes = 70 * kGiB;
  info.limits.staging_bytes = kGiB;
  info.snapshot_tiers = {{SnapshotTier::kDevice, 17 * kGiB, 16 * kGiB, 217},
                         {SnapshotTier::kHost, 16 * kGiB, 13 * kGiB, 185},
                         {SnapshotTier::kDisk, 64 * kGiB, 1, 1234}};
  for (const auto& [name, slots, held] : {std::tuple{"model/a", 512, 500}, {"model/b", 64, 16}, {"tiny", 4, 4}}) {
    CacheInfo& cache = info.caches.emplace_back();
    cache.name = name;
    cache.geometry = {36, slots, 32, 128, 128};
    cache.held_slots = held;
    cache.free_slots = slots - held;
    cache.sessions = 3;
    cache.memory_bytes = slots * (std::int64_t{72} << 20);
  }
  ServerStats& stats = answer.stats;
  stats.started = absl::FromUnixSeconds(1'700'000'000);
  stats.uptime = absl::Hours(1);
  stats.sessions = 9;
  stats.queue = {2, 14};
  stats.prefills = {1'000, 500'000, 4'000, absl::Seconds(1), absl::Seconds(2), absl::Seconds(6), absl::Seconds(1)};
  stats.snapshots.stored = 2'000;
  stats.snapshots.evicted = 366;
  stats.snapshots.lookup_hits = 600;
  stats.snapshots.lookup_misses = 400;
  stats.rpcs = {Rpc("KeepAlive", 0, {Outcomes(0, 20, 0, 0)}),
                Rpc("Prefill", 16, {Outcomes(0, 900, 100, 0), Outcomes(8, 5, 0, 0)}),
                Rpc("WatchSnapshots", 2, {Outcomes(1, 0, 0, 7)})};
  return answer;
}

/// The same server two seconds later.
inline Answer LaterAnswer() {
  Answer answer = SampleAnswer();
  ServerStats& stats = answer.stats;
  stats.uptime += absl::Seconds(2);
  stats.prefills = {
      1'200, 747'000, 4'600, absl::Seconds(1.1), absl::Seconds(2.3), absl::Seconds(7.5), absl::Seconds(1.1)};
  stats.snapshots.stored = 2'024;
  stats.snapshots.evicted = 369;
  stats.snapshots.lookup_hits = 690;
  stats.snapshots.lookup_misses = 410;
  stats.snapshots.hit_tokens = 24'600;
  stats.rpcs = {Rpc("KeepAlive", 0, {Outcomes(0, 21, 0, 0)}), Rpc("LookupPrefix", 1, {Outcomes(0, 100, 0, 0)}),
                Rpc("Prefill", 16, {Outcomes(0, 1000, 200, 0), Outcomes(8, 6, 0, 0)}),
                Rpc("WatchSnapshots", 2, {Outcomes(1, 0, 0, 8)})};
  return answer;
}

inline const absl::Time kNoon = absl::FromUnixSeconds(1'700'000'000 + 3'600);

/// What is shown after both.
inline View SampleView() {
  Model model("gpu-7:7411");
  model.Answered(kNoon, SampleAnswer());
  model.Answered(kNoon + absl::Seconds(2), LaterAnswer());
  return model.view();
}

}  // namespace gdpcache::command::top

#endif  // GDPCACHE_TESTS_UNIT_CLIENT_COMMAND_TOP_SAMPLE_VIEW_H_
