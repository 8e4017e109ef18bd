#include "server/rpc/control/server_info.h"

#include <utility>

#include "server/rpc/control/caches.h"
#include "server/rpc/snapshot_codec.h"

namespace gdpcache::rpc {

ServerInfo::ServerInfo(const cache::Catalog& catalog, const engine::Engine& engine,
                       const cache::SnapshotStore& snapshots, const cache::Clock& clock, std::string version,
                       v1::BuildInfo build, kernels::DeviceInfo device, v1::ServerLimits limits)
    : catalog_(catalog),
      engine_(engine),
      snapshots_(snapshots),
      clock_(clock),
      version_(std::move(version)),
      build_(std::move(build)),
      device_(std::move(device)),
      limits_(std::move(limits)),
      started_(clock.Now()) {}

void ServerInfo::SetAddresses(std::vector<std::string> addresses) {
  const std::lock_guard lock(mutex_);
  addresses_ = std::move(addresses);
}

void ServerInfo::SetSharedMemory(std::string descriptor_socket, std::string device_uuid) {
  const std::lock_guard lock(mutex_);
  descriptor_socket_ = std::move(descriptor_socket);
  device_uuid_ = std::move(device_uuid);
}

void ServerInfo::Fill(v1::GetServerInfoResponse& response) const {
  response.set_version(version_);
  *response.mutable_build() = build_;
  response.set_backend(device_.backend);
  response.set_device(device_.device);
  response.set_device_memory_bytes(device_.memory_bytes);
  response.set_state_memory_used_bytes(catalog_.state_memory_used());
  response.set_staging_used_bytes(engine_.staging().used());
  response.set_expected_wait_ms(absl::ToInt64Milliseconds(engine_.admission().expected_wait()));
  *response.mutable_limits() = limits_;
  response.add_transports("inline");
  response.add_transports("stream");
  response.set_done_flags(true);
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& address : addresses_) response.add_addresses(address);
    response.set_descriptor_socket(descriptor_socket_);
    response.set_device_uuid(device_uuid_);
    if (!descriptor_socket_.empty()) response.add_transports("shared_memory");
    if (!device_uuid_.empty()) response.add_transports("cuda_ipc");
  }
  for (const cache::Catalog::CacheSummary& summary : catalog_.ListCaches()) {
    *response.add_caches() = EncodeCache(*summary.cache, summary.sessions);
  }
  for (const cache::SnapshotStore::TierUsage& usage : snapshots_.tiers()) {
    v1::SnapshotTierInfo& tier = *response.add_snapshot_tiers();
    tier.set_tier(EncodeTier(usage.kind));
    tier.set_capacity_bytes(usage.capacity);
    tier.set_used_bytes(usage.used);
    tier.set_snapshots(usage.snapshots);
  }
  response.set_uptime_ms(absl::ToInt64Milliseconds(clock_.Now() - started_));
}

}  // namespace gdpcache::rpc
