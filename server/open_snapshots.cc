#include "server/open_snapshots.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/cpu/system_limits.h"
#include "server/cache/snapshots/disk_tier.h"
#include "server/cache/snapshots/memory_tier.h"

namespace gdpcache {
namespace {

// Of memory that nothing else is said about.
constexpr std::int64_t kShare = 8;
constexpr std::int64_t kMaxWatches = 256;

cache::StoreTier WithWatermarks(std::unique_ptr<cache::Tier> tier, const config::Watermarks& watermarks) {
  // Divided first: a capacity times 100 may not fit.
  const std::int64_t percent = tier->capacity() / 100;
  const std::int64_t high = watermarks.high == 100 ? tier->capacity() : percent * watermarks.high;
  const std::int64_t low = watermarks.low == 100 ? tier->capacity() : percent * watermarks.low;
  return {std::move(tier), high, low};
}

void LogIncident(const cache::DiskIncident& incident) {
  const std::string kind(cache::Name(incident.kind));
  const std::string why(incident.status.message());
  if (incident.files == 1) {
    spdlog::warn("snapshots on disk: {}: {}: {}", kind, incident.path, why);
  } else {
    spdlog::warn("snapshots on disk: {}: {} files, one of them {}: {}", kind, incident.files, incident.path, why);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<cache::SnapshotStore>> OpenSnapshots(const config::SnapshotConfig& config,
                                                                    kernels::Backend& backend,
                                                                    const cache::Clock& clock,
                                                                    cache::TenantShare share) {
  const kernels::DeviceInfo device = backend.device_info();
  const std::int64_t device_bytes = config.device_bytes.value_or(device.memory_bytes / kShare);
  const std::int64_t host_bytes =
      config.host_bytes.value_or(device.unified_memory ? 0 : kernels::cpu::AvailableMemoryBytes() / kShare);
  std::vector<cache::StoreTier> tiers;
  std::int64_t capacity = 0;
  const auto add = [&](std::unique_ptr<cache::Tier> tier, const config::Watermarks& watermarks) {
    capacity += tier->capacity();
    tiers.push_back(WithWatermarks(std::move(tier), watermarks));
  };
  if (device_bytes > 0) {
    add(std::make_unique<cache::MemoryTier>(backend, cache::TierKind::kDevice, device_bytes), config.device_watermarks);
  }
  if (host_bytes > 0) {
    add(std::make_unique<cache::MemoryTier>(backend, cache::TierKind::kHost, host_bytes), config.host_watermarks);
  }
  std::vector<std::pair<cache::SnapshotRecord, std::shared_ptr<cache::TierCopy>>> recovered;
  if (!config.directory.empty()) {
    cache::DiskTier::Options options;
    options.directory = config.directory;
    options.capacity = config.disk_bytes;
    options.report = [digest = std::make_shared<cache::IncidentDigest>(clock, LogIncident)](
                         const cache::DiskIncident& incident) { digest->Add(incident); };
    absl::StatusOr<std::unique_ptr<cache::DiskTier>> disk = cache::DiskTier::Open(
        std::move(options), backend, [&recovered](cache::SnapshotRecord record, std::shared_ptr<cache::TierCopy> copy) {
          recovered.emplace_back(std::move(record), std::move(copy));
        });
    if (!disk.ok()) return disk.status();
    add(*std::move(disk), config.disk_watermarks);
  }

  cache::SnapshotOptions options;
  options.limits.tenant_bytes = config.tenant_bytes;
  // With its share of the first tier, which may be the only one, a tenant does not have it all.
  options.limits.pinned_bytes = config.pin_bytes.value_or(share.Of(capacity) / 2);
  options.limits.max_watches = kMaxWatches;
  options.limits.max_tenant_watches = share.Of(kMaxWatches);
  options.limits.max_pin_ttl = config.max_pin_ttl;
  options.limits.pending_timeout = config.pending_timeout;
  options.limits.tenant_share = share;
  options.write_policy = config.write_policy;
  options.log = [](absl::string_view line) { spdlog::warn("snapshots: {}", std::string(line)); };
  absl::StatusOr<std::unique_ptr<cache::SnapshotStore>> store =
      cache::SnapshotStore::Create(backend, clock, std::move(tiers), std::move(options));
  if (!store.ok()) return store.status();
  for (auto& [record, copy] : recovered) (*store)->Recover(record, std::move(copy));
  for (const cache::SnapshotStore::TierUsage& tier : (*store)->tiers()) {
    spdlog::info("snapshots: {} tier of {} bytes, {} snapshots", std::string(cache::Name(tier.kind)), tier.capacity,
                 tier.snapshots);
  }
  return store;
}

}  // namespace gdpcache
