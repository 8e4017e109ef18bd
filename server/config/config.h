#ifndef GDPCACHE_SERVER_CONFIG_CONFIG_H_
#define GDPCACHE_SERVER_CONFIG_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gdpcache/config/v1/server_config.pb.h"
#include "gdpcache/v1/cache.pb.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/config/watermarks.h"
#include "server/observe/logging.h"

namespace gdpcache::config {

/// The prefix cache's part.
struct SnapshotConfig {
  std::optional<std::int64_t> device_bytes;  // none: a share of the backend's memory
  std::optional<std::int64_t>
      host_bytes;         // none: a share of the host's memory where that is another than the backend's
  std::string directory;  // empty: no disk tier
  std::int64_t disk_bytes = 0;
  Watermarks device_watermarks;
  Watermarks host_watermarks;
  Watermarks disk_watermarks;
  cache::WritePolicy write_policy = cache::WritePolicy::kWriteThrough;
  std::int64_t tenant_bytes = 0;          // 0: no quota
  std::optional<std::int64_t> pin_bytes;  // none: half of all tiers
  absl::Duration max_pin_ttl;
  absl::Duration pending_timeout;
  absl::Duration flush_timeout;
};

/// Who may use the server. Files are not looked into here.
struct AccessConfig {
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_client_ca;
  std::string token_file;
  std::vector<v1::Identity> identities;
};

/// Everything the server can be told, validated. server/config/flags.cc documents each value and its default.
struct Config {
  std::vector<std::string> listen;  // "host:port"
  std::string unix_path;            // empty: no Unix socket
  AccessConfig access;
  kernels::BackendOptions backend;
  std::int64_t state_memory_bytes = 0;  // 0: half of the backend's memory
  std::int64_t staging_memory_bytes = 0;
  std::int64_t rpc_memory_bytes = 0;  // of what gRPC takes in; 0: no limit
  std::int64_t max_message_bytes = 0;
  std::int64_t shared_memory_bytes = 0;
  std::int64_t max_caches = 0;
  std::int64_t max_sessions = 0;
  std::int64_t max_tenant_sessions = 0;  // 0: max_tenant_share of max_sessions
  std::int64_t max_tenant_slots = 0;     // 0: as many as there are
  std::int64_t max_tenant_share = 100;   // percent
  std::int64_t max_calls = 0;
  absl::Duration max_queue_wait;
  std::int64_t max_connection_calls = 0;
  absl::Duration default_session_ttl;
  absl::Duration max_session_ttl;
  SnapshotConfig snapshots;
  absl::Duration drain_timeout;
  observe::LogOptions log;
  absl::Duration slow_call;                              // 0: none is
  std::string metrics;                                   // "host:port"; empty: none
  std::string admin;                                     // the same
  std::vector<gdpcache::v1::CreateCacheRequest> caches;  // to be created at start; their content is not validated here
};

/// What a command line comes to: a configuration to run with, or something to print and an exit code.
struct Invocation {
  std::optional<Config> config;
  int exit_code = 0;   // without a config: 0 after --help or --version, 2 after a mistake
  std::string output;  // for stdout
  std::string errors;  // for stderr: all that is wrong, one per line
};

/// Reads the command line (`arguments` without the program's name) and the file that --config names. Changes the
/// process's Abseil flags; not thread-safe.
Invocation ParseCommandLine(absl::Span<const char* const> arguments);

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_CONFIG_H_
