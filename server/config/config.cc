#include "server/config/config.h"

#include <sys/un.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/config/access_config.h"
#include "server/config/build_info.h"
#include "server/config/command_line.h"
#include "server/config/config_file.h"
#include "server/config/flags.h"
#include "server/config/help.h"
#include "server/config/listen_address.h"

namespace gdpcache::config {
namespace {

using Errors = std::vector<std::string>;

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
constexpr ByteSize kMaxMemory{std::int64_t{1} << 50};
constexpr ByteSize kMaxMessage{1024 * kMebibyte};
constexpr std::int64_t kAutoRpcMessages = 64;  // that gRPC may keep at least, where nobody says how much it may
constexpr std::int64_t kMaxThreads = 4'096;
constexpr std::int64_t kMaxCount = 1'000'000'000;
constexpr std::int64_t kMaxConnectionCalls = std::numeric_limits<std::int32_t>::max();
constexpr absl::Duration kMinSessionTtl = absl::Milliseconds(100);  // a client may not ask for less either
constexpr absl::Duration kMaxDuration = absl::Hours(24 * 365);

void CheckUnixPath(const std::string& path, Errors& errors) {
  // ".fd" is added for the socket that takes the descriptors of shared memory.
  constexpr std::size_t kMaxPath = sizeof(sockaddr_un::sun_path) - sizeof(".fd");
  if (path.size() > kMaxPath) {
    errors.push_back(absl::StrCat("--unix has ", path.size(), " bytes; a socket's path may have ", kMaxPath));
  }
  if (path.find('\0') != std::string::npos) errors.push_back("--unix has a NUL byte");
}

void CheckRange(absl::string_view flag, std::int64_t value, std::int64_t least, std::int64_t most, Errors& errors) {
  if (value >= least && value <= most) return;
  errors.push_back(absl::StrCat(DisplayName(flag), " is ", value, "; it must be from ", least, " to ", most));
}

void CheckRange(absl::string_view flag, ByteSize value, ByteSize least, ByteSize most, Errors& errors) {
  if (value.bytes >= least.bytes && value.bytes <= most.bytes) return;
  errors.push_back(absl::StrCat(DisplayName(flag), " is ", AbslUnparseFlag(value), "; it must be from ",
                                AbslUnparseFlag(least), " to ", AbslUnparseFlag(most)));
}

void CheckRange(absl::string_view flag, absl::Duration value, absl::Duration least, absl::Duration most,
                Errors& errors) {
  if (value >= least && value <= most) return;
  errors.push_back(absl::StrCat(DisplayName(flag), " is ", absl::FormatDuration(value), "; it must be from ",
                                absl::FormatDuration(least), " to ", absl::FormatDuration(most)));
}

// Of the largest message, to be multiplied: what is beyond the most that it may be is only found out later.
std::int64_t MessageBytes(const Config& config) { return std::min(config.max_message_bytes, kMaxMessage.bytes); }

// What the flags say now.
Config FromFlags() {
  Config config;
  config.listen = absl::GetFlag(FLAGS_listen);
  config.unix_path = absl::GetFlag(FLAGS_unix);
  config.access.tls_certificate = absl::GetFlag(FLAGS_tls_certificate);
  config.access.tls_key = absl::GetFlag(FLAGS_tls_key);
  config.access.tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca);
  config.access.token_file = absl::GetFlag(FLAGS_token_file);
  config.backend.choice = absl::GetFlag(FLAGS_backend);
  config.backend.cpu_threads = static_cast<int>(absl::GetFlag(FLAGS_threads));
  config.backend.cuda_device = static_cast<int>(absl::GetFlag(FLAGS_device));
  config.state_memory_bytes = absl::GetFlag(FLAGS_state_memory).bytes;
  config.staging_memory_bytes = absl::GetFlag(FLAGS_staging_memory).bytes;
  config.max_message_bytes = absl::GetFlag(FLAGS_max_message_size).bytes;
  config.rpc_memory_bytes =
      absl::GetFlag(FLAGS_rpc_memory)
          .bytes.value_or(std::max(config.staging_memory_bytes, kAutoRpcMessages * MessageBytes(config)));
  config.shared_memory_bytes = absl::GetFlag(FLAGS_shared_memory).bytes;
  config.max_caches = absl::GetFlag(FLAGS_max_caches);
  config.max_sessions = absl::GetFlag(FLAGS_max_sessions);
  config.max_tenant_sessions = absl::GetFlag(FLAGS_max_tenant_sessions);
  config.max_tenant_slots = absl::GetFlag(FLAGS_max_tenant_slots);
  config.max_tenant_share = absl::GetFlag(FLAGS_max_tenant_share);
  config.max_calls = absl::GetFlag(FLAGS_max_calls);
  config.max_queue_wait = absl::GetFlag(FLAGS_max_queue_wait);
  config.max_connection_calls = absl::GetFlag(FLAGS_max_connection_calls);
  config.default_session_ttl = absl::GetFlag(FLAGS_default_session_ttl);
  config.max_session_ttl = absl::GetFlag(FLAGS_max_session_ttl);
  SnapshotConfig& snapshots = config.snapshots;
  snapshots.device_bytes = absl::GetFlag(FLAGS_snapshot_device_memory).bytes;
  snapshots.host_bytes = absl::GetFlag(FLAGS_snapshot_host_memory).bytes;
  snapshots.directory = absl::GetFlag(FLAGS_snapshot_directory);
  snapshots.disk_bytes = absl::GetFlag(FLAGS_snapshot_disk_size).bytes;
  snapshots.device_watermarks = absl::GetFlag(FLAGS_snapshot_device_watermarks);
  snapshots.host_watermarks = absl::GetFlag(FLAGS_snapshot_host_watermarks);
  snapshots.disk_watermarks = absl::GetFlag(FLAGS_snapshot_disk_watermarks);
  snapshots.write_policy = absl::GetFlag(FLAGS_snapshot_write);
  snapshots.tenant_bytes = absl::GetFlag(FLAGS_snapshot_tenant_quota).bytes;
  snapshots.pin_bytes = absl::GetFlag(FLAGS_snapshot_pin_budget).bytes;
  snapshots.max_pin_ttl = absl::GetFlag(FLAGS_max_pin_ttl);
  snapshots.pending_timeout = absl::GetFlag(FLAGS_snapshot_pending_timeout);
  snapshots.flush_timeout = absl::GetFlag(FLAGS_snapshot_flush_timeout);
  config.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  config.log = {absl::GetFlag(FLAGS_log_level), absl::GetFlag(FLAGS_log_format)};
  config.slow_call = absl::GetFlag(FLAGS_slow_call);
  config.metrics = absl::GetFlag(FLAGS_metrics);
  config.admin = absl::GetFlag(FLAGS_admin);
  return config;
}

void CheckSnapshots(const SnapshotConfig& config, Errors& errors) {
  const auto check = [&errors](absl::string_view flag, std::optional<std::int64_t> bytes) {
    CheckRange(flag, ByteSize{bytes.value_or(0)}, ByteSize{0}, kMaxMemory, errors);
  };
  check("snapshot_device_memory", config.device_bytes);
  check("snapshot_host_memory", config.host_bytes);
  check("snapshot_tenant_quota", config.tenant_bytes);
  check("snapshot_pin_budget", config.pin_bytes);
  CheckRange("snapshot_disk_size", ByteSize{config.disk_bytes}, ByteSize{kMebibyte}, kMaxMemory, errors);
  CheckRange("max_pin_ttl", config.max_pin_ttl, absl::Milliseconds(1), kMaxDuration, errors);
  CheckRange("snapshot_pending_timeout", config.pending_timeout, absl::Milliseconds(100), kMaxDuration, errors);
  CheckRange("snapshot_flush_timeout", config.flush_timeout, absl::ZeroDuration(), kMaxDuration, errors);
  if (config.directory.find('\0') != std::string::npos) errors.push_back("--snapshot-directory has a NUL byte");
  if (!config.directory.empty() && config.device_bytes == 0 && config.host_bytes.value_or(0) == 0) {
    errors.push_back(
        "--snapshot-directory needs memory that snapshots pass through: --snapshot-device-memory and "
        "--snapshot-host-memory are both 0");
  }
}

void CheckAdmin(const Config& config, Errors& errors) {
  if (config.admin.empty()) return;
  const absl::StatusOr<ListenAddress> parsed = ParseListenAddress(config.admin);
  if (!parsed.ok()) {
    errors.push_back(absl::StrCat("--admin is '", config.admin, "'; ", parsed.status().message()));
  } else if (!parsed->is_loopback()) {
    errors.push_back(absl::StrCat("--admin is '", config.admin, "'; it must be a loopback address"));
  }
}

void Validate(const Config& config, Errors& errors) {
  CheckAccess(config, absl::GetFlag(FLAGS_allow_insecure), errors);
  CheckUnixPath(config.unix_path, errors);
  CheckRange("threads", absl::GetFlag(FLAGS_threads), 0, kMaxThreads, errors);
  CheckRange("device", absl::GetFlag(FLAGS_device), 0, std::numeric_limits<int>::max(), errors);
  CheckRange("state_memory", absl::GetFlag(FLAGS_state_memory), ByteSize{0}, kMaxMemory, errors);
  CheckRange("staging_memory", absl::GetFlag(FLAGS_staging_memory), ByteSize{kMebibyte}, kMaxMemory, errors);
  CheckRange("max_message_size", absl::GetFlag(FLAGS_max_message_size), ByteSize{kMebibyte}, kMaxMessage, errors);
  // Two on their way are the least with which anything goes on. What is derived from other sizes is right if they are.
  if (const std::int64_t given = absl::GetFlag(FLAGS_rpc_memory).bytes.value_or(0); given > 0) {
    CheckRange("rpc_memory", ByteSize{given}, ByteSize{2 * MessageBytes(config)}, kMaxMemory, errors);
  }
  CheckRange("shared_memory", absl::GetFlag(FLAGS_shared_memory), ByteSize{0}, kMaxMemory, errors);
  CheckRange("max_caches", config.max_caches, 1, kMaxCount, errors);
  CheckRange("max_sessions", config.max_sessions, 1, kMaxCount, errors);
  CheckRange("max_tenant_sessions", config.max_tenant_sessions, 0, kMaxCount, errors);
  CheckRange("max_tenant_slots", config.max_tenant_slots, 0, kMaxCount, errors);
  CheckRange("max_tenant_share", config.max_tenant_share, 1, 100, errors);
  CheckRange("max_calls", config.max_calls, 2, kMaxCount, errors);
  CheckRange("max_queue_wait", config.max_queue_wait, absl::Milliseconds(1), kMaxDuration, errors);
  CheckRange("max_connection_calls", config.max_connection_calls, 1, kMaxConnectionCalls, errors);
  CheckRange("max_session_ttl", config.max_session_ttl, kMinSessionTtl, kMaxDuration, errors);
  CheckRange("default_session_ttl", config.default_session_ttl, kMinSessionTtl,
             std::max(kMinSessionTtl, config.max_session_ttl), errors);
  CheckSnapshots(config.snapshots, errors);
  if (const absl::StatusOr<ListenAddress> parsed = ParseListenAddress(config.metrics);
      !config.metrics.empty() && !parsed.ok()) {
    errors.push_back(absl::StrCat("--metrics is '", config.metrics, "'; ", parsed.status().message()));
  }
  CheckAdmin(config, errors);
  CheckRange("slow_call", config.slow_call, absl::ZeroDuration(), kMaxDuration, errors);
  CheckRange("drain_timeout", config.drain_timeout, absl::ZeroDuration(), kMaxDuration, errors);
}

/// Errors name a setting by its flag. One that came from the file is to be found there, by its field.
void NameByField(const ConfigFile& file, const Arguments& arguments, const std::string& path, Errors& errors) {
  for (const auto& [name, value] : file.values) {
    if (arguments.values.contains(name)) continue;
    const std::string flag = absl::StrCat(DisplayName(name), " ");
    for (std::string& error : errors) {
      if (absl::StartsWith(error, flag)) error = absl::StrCat(name, " in ", path, " ", error.substr(flag.size()));
    }
  }
}

}  // namespace

Invocation ParseCommandLine(absl::Span<const char* const> command_line) {
  Invocation invocation;
  Arguments arguments = ReadArguments(command_line);
  if (arguments.help) {
    invocation.output = HelpText();
    return invocation;
  }
  if (arguments.version) {
    invocation.output = VersionText();
    return invocation;
  }
  Errors errors = std::move(arguments.errors);
  for (const auto& [name, value] : arguments.values) SetFlag(name, value, DisplayName(name), errors);
  ConfigFile file;
  if (const std::string path = absl::GetFlag(FLAGS_config); !path.empty()) {
    file = ReadConfigFile(path, errors);
    for (const auto& [name, value] : file.values) {
      if (!arguments.values.contains(name)) SetFlag(name, value, absl::StrCat(name, " in ", path), errors);
    }
  }
  Config config = FromFlags();
  config.access.identities = std::move(file.identities);
  Errors mistakes;
  Validate(config, mistakes);
  NameByField(file, arguments, absl::GetFlag(FLAGS_config), mistakes);
  errors.insert(errors.end(), mistakes.begin(), mistakes.end());
  if (!errors.empty()) {
    for (const std::string& error : errors) absl::StrAppend(&invocation.errors, "gdpcached: ", error, "\n");
    absl::StrAppend(&invocation.errors, "Try 'gdpcached --help'.\n");
    invocation.exit_code = 2;
    return invocation;
  }
  config.caches = std::move(file.caches);
  invocation.config = std::move(config);
  return invocation;
}

}  // namespace gdpcache::config
