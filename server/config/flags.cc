// The one place that documents and sets the default of everything that can be configured.

#include "server/config/flags.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gdpcache::config {
namespace {

/// Whether it is a directory of this user, where nobody else may write. It may be another's, as it is behind sudo.
bool IsPrivate(const char* directory) {
  struct stat info = {};
  return stat(directory, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/// In a directory of the user's own: in /tmp itself anybody could be there first.
std::string DefaultSocketPath() {
  const char* runtime_directory = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_directory != nullptr && *runtime_directory == '/' && IsPrivate(runtime_directory)) {
    return absl::StrCat(runtime_directory, "/gdpcache.sock");
  }
  return absl::StrCat("/tmp/gdpcache-", geteuid(), "/gdpcache.sock");
}

// Name and value of an enum that a flag takes.
template <typename Enum>
using Names = std::vector<std::pair<absl::string_view, Enum>>;

template <typename Enum>
bool ParseName(const Names<Enum>& names, absl::string_view text, Enum* value) {
  for (const auto& [name, candidate] : names) {
    if (name == text) {
      *value = candidate;
      return true;
    }
  }
  return false;
}

template <typename Enum>
std::string NameOf(const Names<Enum>& names, Enum value) {
  for (const auto& [name, candidate] : names) {
    if (candidate == value) return std::string(name);
  }
  return "";
}

const Names<kernels::BackendChoice>& BackendNames() {
  static const auto& names = *new Names<kernels::BackendChoice>{{"auto", kernels::BackendChoice::kAuto},
                                                                {"cpu", kernels::BackendChoice::kCpu},
                                                                {"cuda", kernels::BackendChoice::kCuda}};
  return names;
}

const Names<cache::WritePolicy>& WritePolicyNames() {
  static const auto& names = *new Names<cache::WritePolicy>{{"through", cache::WritePolicy::kWriteThrough},
                                                            {"back", cache::WritePolicy::kWriteBack}};
  return names;
}

const Names<observe::LogLevel>& LogLevelNames() {
  static const auto& names = *new Names<observe::LogLevel>{{"debug", observe::LogLevel::kDebug},
                                                           {"info", observe::LogLevel::kInfo},
                                                           {"warning", observe::LogLevel::kWarning},
                                                           {"error", observe::LogLevel::kError}};
  return names;
}

const Names<observe::LogFormat>& LogFormatNames() {
  static const auto& names =
      *new Names<observe::LogFormat>{{"text", observe::LogFormat::kText}, {"json", observe::LogFormat::kJson}};
  return names;
}

}  // namespace

const std::vector<FlagGroup>& FlagGroups() {
  static const auto& groups = *new std::vector<FlagGroup>{
      {"Serving", {{"listen", "HOST:PORT,..."}, {"allow_insecure", ""}, {"unix", "PATH"}}},
      {"Access", {{"tls_certificate", "FILE"}, {"tls_key", "FILE"}, {"tls_client_ca", "FILE"}, {"token_file", "FILE"}}},
      {"Arithmetic", {{"backend", "auto|cpu|cuda"}, {"device", "N"}, {"threads", "N"}}},
      {"Limits",
       {{"state_memory", "SIZE"},
        {"staging_memory", "SIZE"},
        {"rpc_memory", "auto|SIZE"},
        {"max_message_size", "SIZE"},
        {"shared_memory", "SIZE"},
        {"max_caches", "N"},
        {"max_sessions", "N"},
        {"max_tenant_sessions", "N"},
        {"max_tenant_slots", "N"},
        {"max_tenant_share", "PERCENT"},
        {"max_calls", "N"},
        {"max_queue_wait", "DURATION"},
        {"max_connection_calls", "N"},
        {"default_session_ttl", "DURATION"},
        {"max_session_ttl", "DURATION"}}},
      {"Snapshots",
       {{"snapshot_device_memory", "auto|SIZE"},
        {"snapshot_host_memory", "auto|SIZE"},
        {"snapshot_directory", "PATH"},
        {"snapshot_disk_size", "SIZE"},
        {"snapshot_device_watermarks", "HIGH:LOW"},
        {"snapshot_host_watermarks", "HIGH:LOW"},
        {"snapshot_disk_watermarks", "HIGH:LOW"},
        {"snapshot_write", "through|back"},
        {"snapshot_tenant_quota", "SIZE"},
        {"snapshot_pin_budget", "auto|SIZE"},
        {"max_pin_ttl", "DURATION"},
        {"snapshot_pending_timeout", "DURATION"},
        {"snapshot_flush_timeout", "DURATION"}}},
      {"Operation",
       {{"drain_timeout", "DURATION"},
        {"log_level", "debug|info|warning|error"},
        {"log_format", "text|json"},
        {"slow_call", "DURATION"},
        {"metrics", "HOST:PORT"},
        {"admin", "HOST:PORT"},
        {"config", "FILE"}}},
  };
  return groups;
}

}  // namespace gdpcache::config

namespace gdpcache::kernels {

bool AbslParseFlag(absl::string_view text, BackendChoice* choice, std::string* /*error*/) {
  return config::ParseName(config::BackendNames(), text, choice);
}
std::string AbslUnparseFlag(BackendChoice choice) { return config::NameOf(config::BackendNames(), choice); }

}  // namespace gdpcache::kernels

namespace gdpcache::cache {

bool AbslParseFlag(absl::string_view text, WritePolicy* policy, std::string* /*error*/) {
  return config::ParseName(config::WritePolicyNames(), text, policy);
}
std::string AbslUnparseFlag(WritePolicy policy) { return config::NameOf(config::WritePolicyNames(), policy); }

}  // namespace gdpcache::cache

namespace gdpcache::observe {

bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* /*error*/) {
  return config::ParseName(config::LogLevelNames(), text, level);
}
std::string AbslUnparseFlag(LogLevel level) { return config::NameOf(config::LogLevelNames(), level); }

bool AbslParseFlag(absl::string_view text, LogFormat* format, std::string* /*error*/) {
  return config::ParseName(config::LogFormatNames(), text, format);
}
std::string AbslUnparseFlag(LogFormat format) { return config::NameOf(config::LogFormatNames(), format); }

}  // namespace gdpcache::observe

using gdpcache::config::AutoByteSize;
using gdpcache::config::ByteSize;
using gdpcache::config::Watermarks;

ABSL_FLAG(std::vector<std::string>, listen, {"127.0.0.1:7411"},
          "TCP addresses to serve, comma separated or the flag repeated. Port 0 takes a free one. Empty: none.");
ABSL_FLAG(
    bool, allow_insecure, false,
    "Serve addresses other than loopback without TLS. Connections are neither encrypted nor authenticated: whoever "
    "reaches the port can use the server. Not where there are identities: tokens do not travel in clear text.");
ABSL_FLAG(std::string, unix, gdpcache::config::DefaultSocketPath(),
          "Unix socket to serve, for this user only. Its directory is made where it is missing. Empty: none.");

ABSL_FLAG(
    std::string, tls_certificate, "",
    "Serve TLS (1.2 and later) on TCP, with this certificate and the intermediate ones behind it (PEM). This file "
    "and the other three are read again when they change; while something is wrong with them, what was read before "
    "stays. Empty: no TLS.");
ABSL_FLAG(std::string, tls_key, "", "The certificate's private key (PEM). Not readable by everybody.");
ABSL_FLAG(std::string, tls_client_ca, "",
          "Clients must present a certificate that one of these authorities has signed (PEM). Empty: they need none.");
ABSL_FLAG(
    std::string, token_file, "",
    "Bearer tokens and whose they are: lines 'TOKEN NAME', each with a token of at least 16 characters and the name "
    "of one of the identities in --config. Not readable by everybody. Empty: no tokens.");

ABSL_FLAG(gdpcache::kernels::BackendChoice, backend, gdpcache::kernels::BackendChoice::kAuto,
          "What holds the states and does the arithmetic. auto: CUDA if there is a usable device, else the CPU.");
ABSL_FLAG(std::int64_t, device, 0, "Which CUDA device, by its number.");
ABSL_FLAG(std::int64_t, threads, 0, "Threads of the CPU backend. 0: one for each core the process may use.");

ABSL_FLAG(ByteSize, state_memory, ByteSize{0}, "Memory for all caches together. 0: half of the backend's memory.");
ABSL_FLAG(ByteSize, staging_memory, ByteSize{std::int64_t{1} << 30},
          "Host memory for inputs and results of all calls in flight together; on a GPU as much of its memory, too.");
ABSL_FLAG(
    AutoByteSize, rpc_memory, AutoByteSize{},
    "What gRPC may keep of connections and of messages that come in. Beyond it gRPC ends calls, whosever they are. "
    "0: no limit. auto: as much as --staging-memory, but 64 of the largest messages at least.");
ABSL_FLAG(ByteSize, max_message_size, ByteSize{std::int64_t{16} << 20},
          "Largest message or stream frame, from 1MiB to 1GiB. Larger calls go through streams.");
ABSL_FLAG(
    ByteSize, shared_memory, ByteSize{std::int64_t{16} << 30},
    "System memory that local clients may share with the server, all together. 0: no shared memory, nor memory of "
    "a GPU.");
ABSL_FLAG(std::int64_t, max_caches, 64, "Caches at a time.");
ABSL_FLAG(std::int64_t, max_sessions, 10'000, "Sessions at a time.");
ABSL_FLAG(std::int64_t, max_tenant_sessions, 0,
          "Sessions of one tenant at a time. 0: what --max-tenant-share leaves it of --max-sessions.");
ABSL_FLAG(std::int64_t, max_tenant_slots, 0,
          "Slots that one tenant's sessions may hold at a time, of all caches together. 0: as many as there are.");
ABSL_FLAG(std::int64_t, max_tenant_share, 50,
          "Percent of what all share that one of several tenants may use up: calls under way, staging memory, shared "
          "memory, caches made and their memory, sessions, unfinished snapshots and uploads, watchers. 100: all.");
ABSL_FLAG(std::int64_t, max_calls, 4'096,
          "Calls under way at a time: those being worked on, those that wait for their turn, and those that wait for "
          "their client. One session may have half of them.");
ABSL_FLAG(absl::Duration, max_queue_wait, absl::Seconds(10),
          "How long a call may have to wait for its turn. One that would have to wait longer, at the speed of the last "
          "second, is refused at once.");
ABSL_FLAG(std::int64_t, max_connection_calls, 1'024,
          "Calls at a time on one connection. A client's further ones wait on its own side.");
ABSL_FLAG(absl::Duration, default_session_ttl, absl::Seconds(60),
          "How long a session lives without a call when its client does not say.");
ABSL_FLAG(absl::Duration, max_session_ttl, absl::Hours(24), "The longest that a client may ask for.");

ABSL_FLAG(AutoByteSize, snapshot_device_memory, AutoByteSize{},
          "Memory for snapshots where the recurrence works, besides --state-memory; taken as needed. 0: none. auto: an "
          "eighth of the backend's memory.");
ABSL_FLAG(
    AutoByteSize, snapshot_host_memory, AutoByteSize{},
    "Host memory for snapshots that no longer fit there. 0: none. auto: none with the CPU backend, which works in "
    "host memory anyway, else an eighth of the host's.");
ABSL_FLAG(
    std::string, snapshot_directory, "",
    "Where snapshots are kept as files that outlive the server; made if it is not there, and used by one server at "
    "a time. Empty: nothing is written to disk.");
ABSL_FLAG(ByteSize, snapshot_disk_size, ByteSize{std::int64_t{64} << 30}, "What the files may take together.");
ABSL_FLAG(Watermarks, snapshot_device_watermarks, (Watermarks{90, 80}),
          "Percent of its size: from HIGH on snapshots move from the device to the next tier, the least recently used "
          "first, or are evicted where there is none, until LOW is reached.");
ABSL_FLAG(Watermarks, snapshot_host_watermarks, (Watermarks{90, 80}), "The same for host memory.");
ABSL_FLAG(Watermarks, snapshot_disk_watermarks, (Watermarks{95, 90}), "The same for the disk.");
ABSL_FLAG(gdpcache::cache::WritePolicy, snapshot_write, gdpcache::cache::WritePolicy::kWriteThrough,
          "When snapshots are written to disk. through: as soon as they are stored. back: when they have to leave "
          "memory, and when the server stops; a crash loses what has not been written.");
ABSL_FLAG(ByteSize, snapshot_tenant_quota, ByteSize{0},
          "Bytes of one tenant's snapshots, each counted once. 0: no quota.");
ABSL_FLAG(AutoByteSize, snapshot_pin_budget, AutoByteSize{},
          "Bytes of one tenant's pinned snapshots. auto: half of all tiers together, or of one of several tenants half "
          "of its share of them.");
ABSL_FLAG(absl::Duration, max_pin_ttl, absl::Hours(1), "The longest that a pin or a lookup's lease may last.");
ABSL_FLAG(
    absl::Duration, snapshot_pending_timeout, absl::Seconds(60),
    "When a snapshot is given up that lacks the parts of some layers, or the rest of its upload, and nothing more "
    "comes; also a transfer in which nothing moves.");
ABSL_FLAG(absl::Duration, snapshot_flush_timeout, absl::Seconds(30),
          "After the running calls have ended: how long writing to disk what is not there yet may take.");

ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30),
          "After SIGTERM or SIGINT: how long running calls may take to finish before they are cancelled.");
ABSL_FLAG(gdpcache::observe::LogLevel, log_level, gdpcache::observe::LogLevel::kInfo,
          "The least important messages to write to stderr.");
ABSL_FLAG(gdpcache::observe::LogFormat, log_format, gdpcache::observe::LogFormat::kText,
          "Lines for people, or one JSON object a line.");
ABSL_FLAG(absl::Duration, slow_call, absl::Seconds(10),
          "A call that takes this long is logged as a warning that says where the time went. 0: none is.");
ABSL_FLAG(
    std::string, admin, "",
    "A loopback address for people who look after the server: gRPC's channelz, health and reflection. TLS and "
    "identities are those of --listen; channelz needs the permission ADMIN. Port 0 takes a free one. Empty: nowhere.");
ABSL_FLAG(std::string, metrics, "",
          "Where GET /metrics answers Prometheus, over plain HTTP and to whoever asks. Port 0 takes a free one. Empty: "
          "nowhere.");
ABSL_FLAG(std::string, config, "",
          "A file with values for these flags, in protobuf text format (proto/gdpcache/config/v1/server_config.proto); "
          "flags override it.");
