#ifndef GDPCACHE_SERVER_CONFIG_FLAGS_H_
#define GDPCACHE_SERVER_CONFIG_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/config/byte_size.h"
#include "server/config/watermarks.h"
#include "server/observe/logging.h"

// Abseil finds these by argument-dependent lookup, so they stand with the types.
namespace gdpcache::kernels {
bool AbslParseFlag(absl::string_view text, BackendChoice* choice, std::string* error);
std::string AbslUnparseFlag(BackendChoice choice);
}  // namespace gdpcache::kernels

namespace gdpcache::cache {
bool AbslParseFlag(absl::string_view text, WritePolicy* policy, std::string* error);
std::string AbslUnparseFlag(WritePolicy policy);
}  // namespace gdpcache::cache

namespace gdpcache::observe {
bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* error);
std::string AbslUnparseFlag(LogLevel level);
bool AbslParseFlag(absl::string_view text, LogFormat* format, std::string* error);
std::string AbslUnparseFlag(LogFormat format);
}  // namespace gdpcache::observe

ABSL_DECLARE_FLAG(std::vector<std::string>, listen);
ABSL_DECLARE_FLAG(bool, allow_insecure);
ABSL_DECLARE_FLAG(std::string, unix);
ABSL_DECLARE_FLAG(std::string, tls_certificate);
ABSL_DECLARE_FLAG(std::string, tls_key);
ABSL_DECLARE_FLAG(std::string, tls_client_ca);
ABSL_DECLARE_FLAG(std::string, token_file);
ABSL_DECLARE_FLAG(gdpcache::kernels::BackendChoice, backend);
ABSL_DECLARE_FLAG(std::int64_t, device);
ABSL_DECLARE_FLAG(std::int64_t, threads);
ABSL_DECLARE_FLAG(gdpcache::config::ByteSize, state_memory);
ABSL_DECLARE_FLAG(gdpcache::config::ByteSize, staging_memory);
ABSL_DECLARE_FLAG(gdpcache::config::AutoByteSize, rpc_memory);
ABSL_DECLARE_FLAG(gdpcache::config::ByteSize, max_message_size);
ABSL_DECLARE_FLAG(gdpcache::config::ByteSize, shared_memory);
ABSL_DECLARE_FLAG(std::int64_t, max_caches);
ABSL_DECLARE_FLAG(std::int64_t, max_sessions);
ABSL_DECLARE_FLAG(std::int64_t, max_tenant_sessions);
ABSL_DECLARE_FLAG(std::int64_t, max_tenant_slots);
ABSL_DECLARE_FLAG(std::int64_t, max_tenant_share);
ABSL_DECLARE_FLAG(std::int64_t, max_calls);
ABSL_DECLARE_FLAG(absl::Duration, max_queue_wait);
ABSL_DECLARE_FLAG(std::int64_t, max_connection_calls);
ABSL_DECLARE_FLAG(absl::Duration, default_session_ttl);
ABSL_DECLARE_FLAG(absl::Duration, max_session_ttl);
ABSL_DECLARE_FLAG(gdpcache::config::AutoByteSize, snapshot_device_memory);
ABSL_DECLARE_FLAG(gdpcache::config::AutoByteSize, snapshot_host_memory);
ABSL_DECLARE_FLAG(std::string, snapshot_directory);
ABSL_DECLARE_FLAG(gdpcache::config::ByteSize, snapshot_disk_size);
ABSL_DECLARE_FLAG(gdpcache::config::Watermarks, snapshot_device_watermarks);
ABSL_DECLARE_FLAG(gdpcache::config::Watermarks, snapshot_host_watermarks);
ABSL_DECLARE_FLAG(gdpcache::config::Watermarks, snapshot_disk_watermarks);
ABSL_DECLARE_FLAG(gdpcache::cache::WritePolicy, snapshot_write);
ABSL_DECLARE_FLAG(gdpcache::config::ByteSize, snapshot_tenant_quota);
ABSL_DECLARE_FLAG(gdpcache::config::AutoByteSize, snapshot_pin_budget);
ABSL_DECLARE_FLAG(absl::Duration, max_pin_ttl);
ABSL_DECLARE_FLAG(absl::Duration, snapshot_pending_timeout);
ABSL_DECLARE_FLAG(absl::Duration, snapshot_flush_timeout);
ABSL_DECLARE_FLAG(absl::Duration, drain_timeout);
ABSL_DECLARE_FLAG(gdpcache::observe::LogLevel, log_level);
ABSL_DECLARE_FLAG(gdpcache::observe::LogFormat, log_format);
ABSL_DECLARE_FLAG(absl::Duration, slow_call);
ABSL_DECLARE_FLAG(std::string, metrics);
ABSL_DECLARE_FLAG(std::string, admin);
ABSL_DECLARE_FLAG(std::string, config);

namespace gdpcache::config {

/// How --help shows a flag.
struct FlagEntry {
  absl::string_view name;   // Abseil's, with underscores
  absl::string_view value;  // what stands for the value; empty for a switch
};

struct FlagGroup {
  absl::string_view title;
  std::vector<FlagEntry> flags;
};

/// All flags of the server, in the order of --help. Flags of other libraries do not exist for our command line.
const std::vector<FlagGroup>& FlagGroups();

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_FLAGS_H_
