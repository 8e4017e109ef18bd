#ifndef GDPCACHE_SERVER_RPC_CONTROL_SERVER_INFO_H_
#define GDPCACHE_SERVER_RPC_CONTROL_SERVER_INFO_H_

#include <mutex>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gdpcache/v1/cache.pb.h"
#include "kernels/backend.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/engine.h"

namespace gdpcache::rpc {

/// Answers GetServerInfo. Thread-safe.
class ServerInfo {
 public:
  ServerInfo(const cache::Catalog& catalog, const engine::Engine& engine, const cache::SnapshotStore& snapshots,
             const cache::Clock& clock, std::string version, v1::BuildInfo build, kernels::DeviceInfo device,
             v1::ServerLimits limits);

  /// "host:port" and "unix:path"; known once the server listens.
  void SetAddresses(std::vector<std::string> addresses);

  /// The socket that takes descriptors and the device whose memory can be shared; each empty when there is none. As
  /// SetAddresses.
  void SetSharedMemory(std::string descriptor_socket, std::string device_uuid);

  void Fill(v1::GetServerInfoResponse& response) const;

 private:
  const cache::Catalog& catalog_;
  const engine::Engine& engine_;
  const cache::SnapshotStore& snapshots_;
  const cache::Clock& clock_;
  const std::string version_;
  const v1::BuildInfo build_;
  const kernels::DeviceInfo device_;
  const v1::ServerLimits limits_;
  const absl::Time started_;

  mutable std::mutex mutex_;
  std::vector<std::string> addresses_;
  std::string descriptor_socket_;
  std::string device_uuid_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CONTROL_SERVER_INFO_H_
