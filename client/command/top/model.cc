#include "client/command/top/model.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace gdpcache::command::top {
namespace {

constexpr int kOk = 0;
constexpr int kCancelled = 1;

/// A method's RPCs, or what came to them.
struct Rpcs {
  std::int64_t active = 0;
  std::int64_t calls = 0;
  std::int64_t errors = 0;
  std::vector<DurationBucket> buckets;
};

using Name = std::pair<std::string, std::string>;  // service, method
using Methods = std::map<Name, Rpcs>;

void Add(absl::Span<const DurationBucket> buckets, std::int64_t sign, std::vector<DurationBucket>& sum) {
  if (sum.empty()) {
    for (const DurationBucket& bucket : buckets) sum.push_back({bucket.limit, 0});
  }
  for (std::size_t i = 0; i < std::min(sum.size(), buckets.size()); ++i) sum[i].count += sign * buckets[i].count;
}

/// Adds the counters; with sign -1 subtracts those of an earlier answer.
void Add(absl::Span<const RpcStats> rpcs, std::int64_t sign, Methods& methods) {
  for (const RpcStats& rpc : rpcs) {
    Rpcs& sum = methods[{rpc.service, rpc.method}];
    if (sign > 0) sum.active = rpc.active;
    for (const RpcOutcomes& outcomes : rpc.outcomes) {
      sum.calls += sign * outcomes.count;
      if (outcomes.code != kOk && outcomes.code != kCancelled) sum.errors += sign * outcomes.count;
      Add(outcomes.buckets, sign, sum.buckets);
    }
  }
}

RpcGrowth Describe(const Name& name, const Rpcs& rpcs) {
  return {name.first,
          name.second,
          rpcs.active,
          rpcs.calls,
          rpcs.errors,
          Quantile(rpcs.buckets, 0.5),
          Quantile(rpcs.buckets, 0.99)};
}

std::vector<RpcGrowth> BusiestFirst(const Methods& methods) {
  std::vector<RpcGrowth> result;
  for (const auto& [name, rpcs] : methods) result.push_back(Describe(name, rpcs));
  std::stable_sort(result.begin(), result.end(), [](const RpcGrowth& a, const RpcGrowth& b) {
    return std::tie(a.calls, a.active) > std::tie(b.calls, b.active);
  });
  return result;
}

Rpcs Sum(const Methods& methods, absl::Span<const std::string> only = {}) {
  Rpcs sum;
  for (const auto& [name, rpcs] : methods) {
    if (!only.empty() && std::find(only.begin(), only.end(), name.second) == only.end()) continue;
    sum.active += rpcs.active;
    sum.calls += rpcs.calls;
    sum.errors += rpcs.errors;
    Add(rpcs.buckets, 1, sum.buckets);
  }
  return sum;
}

PrefillStats Difference(const PrefillStats& later, const PrefillStats& earlier) {
  return {later.calls - earlier.calls,        later.tokens - earlier.tokens,     later.sequences - earlier.sequences,
          later.queue - earlier.queue,        later.stage_in - earlier.stage_in, later.compute - earlier.compute,
          later.stage_out - earlier.stage_out};
}

SnapshotStats Difference(const SnapshotStats& later, const SnapshotStats& earlier) {
  return {later.stored - earlier.stored,           later.evicted - earlier.evicted,
          later.deleted - earlier.deleted,         later.abandoned - earlier.abandoned,
          later.lookup_hits - earlier.lookup_hits, later.lookup_misses - earlier.lookup_misses,
          later.hit_tokens - earlier.hit_tokens,   later.promotions - earlier.promotions,
          later.demotions - earlier.demotions,     later.checksum_failures - earlier.checksum_failures,
          later.tier_errors - earlier.tier_errors};
}

/// nullopt where the counters began anew between the two.
std::optional<Growth> GrowthBetween(const ServerStats& earlier, const ServerStats& later) {
  if (later.started != earlier.started || later.uptime <= earlier.uptime) return std::nullopt;
  Methods methods;
  Add(later.rpcs, 1, methods);
  Add(earlier.rpcs, -1, methods);
  const Rpcs prefills = Sum(methods, {"Prefill", "PrefillStream"});
  const Rpcs all = Sum(methods);
  Growth growth;
  growth.span = later.uptime - earlier.uptime;
  growth.prefills = Difference(later.prefills, earlier.prefills);
  growth.prefill_p50 = Quantile(prefills.buckets, 0.5);
  growth.prefill_p99 = Quantile(prefills.buckets, 0.99);
  growth.snapshots = Difference(later.snapshots, earlier.snapshots);
  growth.rpcs = BusiestFirst(methods);
  growth.calls = all.calls;
  growth.errors = all.errors;
  return growth;
}

}  // namespace

const RpcGrowth* Growth::Find(const RpcGrowth& rpc) const {
  const auto found = std::find_if(rpcs.begin(), rpcs.end(), [&rpc](const RpcGrowth& other) {
    return other.service == rpc.service && other.method == rpc.method;
  });
  return found == rpcs.end() ? nullptr : &*found;
}

std::optional<double> HitRate(const SnapshotStats& snapshots) {
  const std::int64_t lookups = snapshots.lookup_hits + snapshots.lookup_misses;
  if (lookups <= 0) return std::nullopt;
  return static_cast<double>(snapshots.lookup_hits) / static_cast<double>(lookups);
}

std::optional<absl::Duration> Quantile(absl::Span<const DurationBucket> buckets, double quantile) {
  std::int64_t all = 0;
  for (const DurationBucket& bucket : buckets) all += bucket.count;
  if (all <= 0) return std::nullopt;
  const double wanted = quantile * static_cast<double>(all);
  double before = 0;
  absl::Duration lower = absl::ZeroDuration();
  for (const DurationBucket& bucket : buckets) {
    if (!bucket.limit.has_value()) break;
    const auto count = static_cast<double>(bucket.count);
    if (count > 0 && before + count >= wanted) return lower + (*bucket.limit - lower) * ((wanted - before) / count);
    before += count;
    lower = *bucket.limit;
  }
  return lower;
}

void Model::Answered(absl::Time time, Answer answer) {
  view_.time = time;
  view_.growth.reset();
  if (view_.answer.has_value()) view_.growth = GrowthBetween(view_.answer->stats, answer.stats);
  view_.outage.reset();
  Methods methods;
  Add(answer.stats.rpcs, 1, methods);
  view_.total = Describe({}, Sum(methods));
  view_.totals = BusiestFirst(methods);
  view_.answer = std::move(answer);
}

void Model::Failed(absl::Time time, absl::Status error) {
  view_.time = time;
  view_.growth.reset();
  const absl::Time since = view_.outage.has_value() ? view_.outage->since : time;
  view_.outage = View::Outage{since, std::move(error)};
}

}  // namespace gdpcache::command::top
