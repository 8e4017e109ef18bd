#ifndef GDPCACHE_SERVER_RPC_SERVER_H_
#define GDPCACHE_SERVER_RPC_SERVER_H_

#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/cache/task_thread.h"
#include "server/engine/engine.h"
#include "server/rpc/access/access_control.h"
#include "server/rpc/call_log.h"
#include "server/rpc/control/server_info.h"
#include "server/rpc/control/server_stats.h"
#include "server/rpc/deadline_thread.h"
#include "server/rpc/detached_calls.h"
#include "server/rpc/health/health.h"
#include "server/rpc/health/health_service.h"
#include "server/rpc/memory/memory_plane.h"
#include "server/rpc/metrics/server_metrics.h"
#include "server/rpc/service.h"
#include "server/rpc/snapshot_uploads.h"
#include "server/rpc/unix_socket.h"

namespace gdpcache::rpc {

struct ServerOptions {
  std::string version;
  v1::BuildInfo build = {};
  std::vector<std::string> listen;  // "host:port"; port 0 takes a free one
  std::string unix_path = {};       // empty: none
  std::string admin = {};           // "host:port" of channelz, health and reflection; empty: none
  std::int64_t max_message_bytes = 0;
  std::int64_t rpc_memory_bytes = 0;  // what gRPC may keep of connections, calls and messages that come in; 0: no limit
  std::int64_t max_connection_calls = 1'024;
  std::int64_t shared_memory_bytes = 0;  // of system memory that clients may share; 0: no shared memory of any kind
  cache::TenantShare tenant_share = {};  // of uploads and shared memory; other shares are in the limits
  cache::CatalogLimits limits;           // what the catalog was made with, for GetServerInfo
  std::shared_ptr<const AccessControl> access = AccessControl::Everybody();
  absl::Duration slow_call = absl::ZeroDuration();  // calls that take this long are logged; zero: none
  absl::Duration max_pin_ttl;
  absl::Duration transfer_timeout;  // of a snapshot's transfer in which nothing moves, and of an upload that broke
};

/// The gRPC server: its listeners, the StateCache service, health, reflection, and the expiry of sessions.
///
/// Health, on every address: the service "" is SERVING while the process works, the StateCache service while it takes
/// calls.
class Server {
 public:
  /// Serves when it returns. The catalog, the engine, the snapshots, the thread, the clock and the metrics must outlive
  /// the server. `thread` takes memory and gives it back. Errors say which address could not be served and why.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, kernels::DeviceInfo device,
                                                       cache::Catalog& catalog, engine::Engine& engine,
                                                       cache::SnapshotStore& snapshots, cache::TaskThread& thread,
                                                       const cache::Clock& clock, ServerMetrics& metrics);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  /// The TCP addresses being served, "host:port" with the real port.
  const std::vector<std::string>& addresses() const { return addresses_; }

  /// "host:port" of the admin address; empty: none.
  const std::string& admin_address() const { return admin_address_; }

  /// Health is NOT_SERVING from now on: the process must be restarted.
  void ReportLost();

  /// Stops gracefully: reports that the service is NOT_SERVING, refuses new work, lets running calls finish for
  /// `drain_timeout`, cancels the rest. Once. DEADLINE_EXCEEDED when calls do not end although cancelled: a device
  /// hangs, and nothing they use may be destroyed.
  absl::Status Shutdown(absl::Duration drain_timeout);

 private:
  Server(const ServerOptions& options, kernels::DeviceInfo device, cache::Catalog& catalog, engine::Engine& engine,
         cache::SnapshotStore& snapshots, cache::TaskThread& thread, const cache::Clock& clock, ServerMetrics& metrics);
  absl::Status Listen(const ServerOptions& options);
  absl::Status ListenForAdmin(const std::string& address);
  /// Of the StateCache service.
  void ReportServing(bool serving);

  cache::Catalog& catalog_;
  ServerMetrics& metrics_;
  const std::shared_ptr<const AccessControl> access_;
  CallLog log_;
  ServerInfo info_;
  ServerStats stats_;
  DeadlineThread expiry_;
  UnixSocketLock socket_lock_;
  MemoryPlane memory_;  // its socket goes before the lock
  DetachedCalls detached_;
  SnapshotUploads uploads_;
  DeadlineThread transfer_expiry_;  // of both
  Service service_;
  Health health_;
  HealthService health_service_{health_};
  HealthService admin_health_service_{health_};
  grpc::ResourceQuota quota_;        // of all that gRPC takes in
  grpc::ResourceQuota admin_quota_;  // the same at the admin address, which is there when clients have used up theirs
  std::vector<std::string> addresses_;
  std::unique_ptr<grpc::Server> server_;
  std::string admin_address_;
  std::unique_ptr<grpc::Server> admin_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_SERVER_H_
