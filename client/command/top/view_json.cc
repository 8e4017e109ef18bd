#include "client/command/top/view_json.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "client/command/describe.h"
#include "client/command/snapshot_text.h"

namespace gdpcache::command::top {
namespace {

using nlohmann::json;

std::string TimeText(absl::Time time) { return absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", time, absl::UTCTimeZone()); }

json Microseconds(std::optional<absl::Duration> duration) {
  return duration.has_value() ? json(absl::ToInt64Microseconds(*duration)) : json(nullptr);
}

json OrNull(std::optional<double> value) { return value.has_value() ? json(*value) : json(nullptr); }

json Totals(const View& view) {
  const PrefillStats& prefills = view.answer->stats.prefills;
  const SnapshotStats& snapshots = view.answer->stats.snapshots;
  return {{"rpcs", view.total.calls},
          {"errors", view.total.errors},
          {"prefills",
           {{"calls", prefills.calls},
            {"tokens", prefills.tokens},
            {"sequences", prefills.sequences},
            {"queue_us", Microseconds(prefills.queue)},
            {"stage_in_us", Microseconds(prefills.stage_in)},
            {"compute_us", Microseconds(prefills.compute)},
            {"stage_out_us", Microseconds(prefills.stage_out)}}},
          {"snapshots",
           {{"stored", snapshots.stored},
            {"evicted", snapshots.evicted},
            {"deleted", snapshots.deleted},
            {"abandoned", snapshots.abandoned},
            {"lookup_hits", snapshots.lookup_hits},
            {"lookup_misses", snapshots.lookup_misses},
            {"hit_rate", OrNull(HitRate(snapshots))},
            {"hit_tokens", snapshots.hit_tokens},
            {"promotions", snapshots.promotions},
            {"demotions", snapshots.demotions},
            {"checksum_failures", snapshots.checksum_failures},
            {"tier_errors", snapshots.tier_errors}}}};
}

json Rates(const std::optional<Growth>& growth) {
  if (!growth.has_value()) return nullptr;
  const SnapshotStats& snapshots = growth->snapshots;
  const auto rate = [&growth](std::int64_t count) { return growth->PerSecond(count); };
  return {{"seconds", absl::ToDoubleSeconds(growth->span)},
          {"rpcs", rate(growth->calls)},
          {"errors", rate(growth->errors)},
          {"prefills",
           {{"calls", rate(growth->prefills.calls)},
            {"tokens", rate(growth->prefills.tokens)},
            {"sequences", rate(growth->prefills.sequences)},
            {"p50_us", Microseconds(growth->prefill_p50)},
            {"p99_us", Microseconds(growth->prefill_p99)}}},
          {"snapshots",
           {{"stored", rate(snapshots.stored)},
            {"evicted", rate(snapshots.evicted)},
            {"deleted", rate(snapshots.deleted)},
            {"lookups", rate(snapshots.lookup_hits + snapshots.lookup_misses)},
            {"hit_rate", OrNull(HitRate(snapshots))},
            {"hit_tokens", rate(snapshots.hit_tokens)},
            {"promotions", rate(snapshots.promotions)},
            {"demotions", rate(snapshots.demotions)}}}};
}

json Figures(const RpcGrowth& rpc, const std::function<json(std::int64_t)>& count) {
  return {{"calls", count(rpc.calls)},
          {"errors", count(rpc.errors)},
          {"p50_us", Microseconds(rpc.p50)},
          {"p99_us", Microseconds(rpc.p99)}};
}

json Rpcs(const View& view) {
  json list = json::array();
  for (const RpcGrowth& total : view.totals) {
    json rpc = {{"service", total.service}, {"method", total.method}, {"active", total.active}};
    rpc["totals"] = Figures(total, [](std::int64_t count) { return count; });
    rpc["rates"] = nullptr;
    if (const RpcGrowth* const grown = view.growth.has_value() ? view.growth->Find(total) : nullptr) {
      rpc["rates"] = Figures(*grown, [&view](std::int64_t count) { return view.growth->PerSecond(count); });
    }
    list.push_back(std::move(rpc));
  }
  return list;
}

}  // namespace

json ToJson(const View& view) {
  json result = {{"time", TimeText(view.time)}, {"server", view.address}, {"reachable", !view.outage.has_value()}};
  if (view.outage.has_value()) {
    result["unreachable_since"] = TimeText(view.outage->since);
    result["error"] = std::string(view.outage->error.message());
    return result;
  }
  const ServerInfo& info = view.answer->info;
  const ServerStats& stats = view.answer->stats;
  result.update(
      {{"version", info.version},
       {"backend", info.backend},
       {"device", info.device},
       {"started", TimeText(stats.started)},
       {"uptime_ms", absl::ToInt64Milliseconds(stats.uptime)},
       {"draining", stats.draining},
       {"sessions", stats.sessions},
       {"state_memory",
        {{"used_bytes", info.state_memory_used_bytes}, {"limit_bytes", info.limits.state_memory_bytes}}},
       {"staging_memory", {{"used_bytes", info.staging_used_bytes}, {"limit_bytes", info.limits.staging_bytes}}},
       {"caches", command::ToJson(absl::MakeConstSpan(info.caches))},
       {"snapshot_tiers", command::ToJson(absl::MakeConstSpan(info.snapshot_tiers))},
       {"queue",
        {{"running", stats.queue.running},
         {"waiting", stats.queue.waiting},
         {"expected_wait_ms", absl::ToInt64Milliseconds(info.expected_wait)}}},
       {"totals", Totals(view)},
       {"rates", Rates(view.growth)},
       {"rpcs", Rpcs(view)}});
  return result;
}

}  // namespace gdpcache::command::top
