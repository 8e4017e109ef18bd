#include "server/rpc/metrics/state_metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_type.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "server/cache/snapshots/tier.h"
#include "server/observe/heap.h"

namespace gdpcache::rpc {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

/// A family whose samples are added one by one.
class Family {
 public:
  Family(std::string name, std::string help, MetricType type) : family_{std::move(name), std::move(help), type, {}} {}

  Family& Add(Labels labels, std::int64_t value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = metric.counter.value = static_cast<double>(value);
    family_.metric.push_back(std::move(metric));
    return *this;
  }
  Family& Add(absl::Duration value) {
    family_.metric.emplace_back().gauge.value = absl::ToDoubleSeconds(value);
    return *this;
  }
  MetricFamily Take() { return std::move(family_); }

 private:
  MetricFamily family_;
};

Family Gauge(std::string name, std::string help) { return {std::move(name), std::move(help), MetricType::Gauge}; }
Family Counter(std::string name, std::string help) { return {std::move(name), std::move(help), MetricType::Counter}; }

std::int64_t ResidentBytes() {
  std::int64_t size = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::int64_t EntriesOf(const char* directory) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(directory, error);
  return error ? 0 : std::distance(begin(entries), end(entries));
}

}  // namespace

StateMetrics::StateMetrics(const cache::Catalog& catalog, const cache::SnapshotStore& snapshots,
                           const engine::Engine& engine, Build build,
                           std::function<absl::StatusOr<kernels::DeviceMemory>()> device_memory)
    : catalog_(catalog),
      snapshots_(snapshots),
      engine_(engine),
      build_(std::move(build)),
      device_memory_(std::move(device_memory)) {}

std::vector<MetricFamily> StateMetrics::Collect() const {
  std::vector<MetricFamily> families;
  const auto gauge = [&families](std::string name, std::string help, std::int64_t value) {
    families.push_back(Gauge(std::move(name), std::move(help)).Add({}, value).Take());
  };
  const auto counter = [&families](std::string name, std::string help, std::int64_t value) {
    families.push_back(Counter(std::move(name), std::move(help)).Add({}, value).Take());
  };

  families.push_back(Gauge("gdpcache_build_info", "Always 1; the labels tell what runs.")
                         .Add({{"version", build_.version},
                               {"commit", build_.commit},
                               {"backend", build_.backend},
                               {"device", build_.device}},
                              1)
                         .Take());
  gauge("process_start_time_seconds", "When the server started, in seconds since 1970.", absl::ToUnixSeconds(started_));
  gauge("process_resident_memory_bytes", "Memory of the process.", ResidentBytes());
  const observe::HeapBytes heap = observe::CountHeapBytes();
  families.push_back(Gauge("gdpcache_heap_bytes", "Memory of the process that is malloc's, by what it is.")
                         .Add({{"state", "in_use"}}, heap.in_use)
                         .Add({{"state", "free"}}, heap.free)
                         .Add({{"state", "mapped"}}, heap.mapped)
                         .Take());
  gauge("process_open_fds", "File descriptors of the process.", EntriesOf("/proc/self/fd"));
  gauge("process_threads", "Threads of the process.", EntriesOf("/proc/self/task"));

  if (const absl::StatusOr<kernels::DeviceMemory> device = device_memory_(); device.ok()) {
    gauge("gdpcache_device_memory_used_bytes", "Memory in use, by whatever process, of the device with the states.",
          device->used_bytes);
    gauge("gdpcache_device_memory_total_bytes", "All of its memory.", device->total_bytes);
  }

  Family slots = Gauge("gdpcache_slots", "Slots by what they are.");
  Family memory = Gauge("gdpcache_cache_memory_bytes", "State and auxiliary memory of a cache.");
  for (const cache::Catalog::CacheSummary& summary : catalog_.ListCaches()) {
    const std::string& name = summary.cache->spec().name;
    const cache::SlotTable::Counts counts = summary.cache->slots().counts();
    slots.Add({{"cache", name}, {"state", "free"}}, counts.free).Add({{"cache", name}, {"state", "held"}}, counts.held);
    memory.Add({{"cache", name}}, summary.cache->geometry().total_bytes());
  }
  families.push_back(slots.Take());
  families.push_back(memory.Take());
  gauge("gdpcache_sessions", "Open sessions, and ended ones whose calls have not.", catalog_.session_count());
  gauge("gdpcache_state_memory_used_bytes", "Memory of all caches.", catalog_.state_memory_used());
  gauge("gdpcache_staging_used_bytes", "Host memory of the calls in flight.", engine_.staging().used());
  gauge("gdpcache_staging_limit_bytes", "What they may use.", engine_.staging().budget());
  gauge("gdpcache_device_staging_used_bytes", "Device memory of the calls in flight; 0 on the CPU.",
        engine_.device_staging().used());

  gauge("gdpcache_calls", "Calls under way: being worked on, waiting for their turn or for their client.",
        engine_.admission().calls());
  families.push_back(Gauge("gdpcache_expected_wait_seconds", "What a call that comes now has to wait, about.")
                         .Add(engine_.admission().expected_wait())
                         .Take());

  Family tier_capacity = Gauge("gdpcache_snapshot_tier_capacity_bytes", "What a tier of snapshots may use.");
  Family tier_used = Gauge("gdpcache_snapshot_tier_used_bytes", "What it uses.");
  Family tier_snapshots = Gauge("gdpcache_snapshots", "Snapshots with a copy in the tier.");
  for (const cache::SnapshotStore::TierUsage& tier : snapshots_.tiers()) {
    const Labels labels = {{"tier", std::string(cache::Name(tier.kind))}};
    tier_capacity.Add(labels, tier.capacity);
    tier_used.Add(labels, tier.used);
    tier_snapshots.Add(labels, tier.snapshots);
  }
  families.push_back(tier_capacity.Take());
  families.push_back(tier_used.Take());
  families.push_back(tier_snapshots.Take());

  const cache::SnapshotCounters counters = snapshots_.counters();
  counter("gdpcache_snapshots_stored_total", "Snapshots that became findable.", counters.stored);
  counter("gdpcache_snapshots_evicted_total", "Snapshots dropped for want of space or as damaged.", counters.evicted);
  counter("gdpcache_snapshots_deleted_total", "Snapshots deleted by clients.", counters.deleted);
  counter("gdpcache_snapshots_abandoned_total", "Snapshots that were never completed.", counters.abandoned);
  counter("gdpcache_lookup_hits_total", "LookupPrefix calls that found a prefix.", counters.hits);
  counter("gdpcache_lookup_misses_total", "LookupPrefix calls that found none.", counters.misses);
  counter("gdpcache_lookup_hit_tokens_total", "Tokens of the prefixes found.", counters.hit_tokens);
  counter("gdpcache_snapshot_promotions_total", "Copies made in a faster tier.", counters.promotions);
  counter("gdpcache_snapshot_demotions_total", "Copies made in a slower tier.", counters.demotions);
  counter("gdpcache_snapshot_checksum_failures_total", "Snapshots found damaged.", counters.checksum_failures);
  counter("gdpcache_snapshot_tier_errors_total", "Copies that could not be made or read.", counters.tier_errors);
  return families;
}

}  // namespace gdpcache::rpc
