#ifndef GDPCACHE_CLIENT_H_
#define GDPCACHE_CLIENT_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gdpcache/cache.h"
#include "gdpcache/error_details.h"
#include "gdpcache/options.h"
#include "gdpcache/prefill.h"
#include "gdpcache/session.h"
#include "gdpcache/snapshot.h"
#include "gdpcache/stats.h"
#include "gdpcache/tensor.h"

namespace gdpcache {

namespace client {
class Connection;
}  // namespace client

/// What grpc.health.v1 says.
enum class ServingStatus { kUnknown, kServing, kNotServing };

/// What it is asked: whether the server takes calls now, or whether its process works, which it does also while it
/// drains. One that is not alive must be restarted.
enum class HealthQuestion { kReady, kAlive };

/// INVALID_ARGUMENT unless `address` is "host:port" (an IPv6 host in brackets) or "unix:PATH".
absl::Status CheckAddress(absl::string_view address);

/// Asks whether the server at `address` is serving, without any other call.
absl::StatusOr<ServingStatus> CheckHealth(const std::string& address, const ClientOptions& options = {},
                                          HealthQuestion question = HealthQuestion::kReady);

/// A connection to one server, renewed by itself when it breaks. Safe for use by several threads at once, except for
/// moving and destruction. Sessions may outlive it.
class Client {
 public:
  /// Connects and asks the server who it is. UNAVAILABLE when nobody answers; UNIMPLEMENTED when it is something else;
  /// FAILED_PRECONDITION for a Unix socket that another user may have put into a directory like /tmp.
  static absl::StatusOr<Client> Connect(const std::string& address, const ClientOptions& options = {});

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  const std::string& address() const;

  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& options = {}) const;
  absl::StatusOr<ServerStats> GetServerStats(const CallOptions& options = {}) const;

  /// Creating a cache that exists with the same geometry and fingerprint returns it.
  absl::StatusOr<CreatedCache> CreateCache(const CacheSpec& spec, const CallOptions& options = {}) const;

  /// `force` ends the cache's sessions first; without it open sessions are FAILED_PRECONDITION.
  absl::Status DeleteCache(const std::string& name, bool force = false, const CallOptions& options = {}) const;
  absl::StatusOr<std::vector<CacheInfo>> ListCaches(const CallOptions& options = {}) const;
  absl::StatusOr<SlotList> ListSlots(const std::string& cache, const CallOptions& options = {}) const;

  absl::StatusOr<Session> OpenSession(const std::string& cache, const SessionOptions& session = {},
                                      const CallOptions& options = {}) const;

  // Snapshots live in the space of a cache: those of every cache with the same fingerprint and shape, but only the
  // caller's own. gdpcache/v1/snapshot.proto says when each of these fails.

  /// The longest prefix that is there; `keys` are those of one prompt's prefixes, shortest first. A positive `lease`
  /// keeps it until it is restored with the match's pin, at most so long.
  absl::StatusOr<std::optional<PrefixMatch>> LookupPrefix(const std::string& cache, absl::Span<const std::string> keys,
                                                          absl::Duration lease = absl::ZeroDuration(),
                                                          const CallOptions& options = {}) const;

  /// Keeps all of them from being evicted and deleted; zero `ttl`: as long as the server allows.
  absl::StatusOr<SnapshotPin> PinSnapshots(const std::string& cache, absl::Span<const std::string> keys,
                                           absl::Duration ttl = absl::ZeroDuration(),
                                           const CallOptions& options = {}) const;
  absl::Status UnpinSnapshots(const std::string& cache, const std::string& pin, const CallOptions& options = {}) const;

  /// Returns how many there were. Pinned ones only by `force`; without it one of them keeps all.
  absl::StatusOr<std::int64_t> DeleteSnapshots(const std::string& cache, absl::Span<const std::string> keys,
                                               bool force = false, const CallOptions& options = {}) const;

  /// One page after another: an empty `page_token` is the first, page_size 0 takes the server's.
  absl::StatusOr<SnapshotPage> ListSnapshots(const std::string& cache, std::int64_t page_size = 0,
                                             const std::string& page_token = "", const CallOptions& options = {}) const;

  /// Events from now on; with `existing` first those of what there is. Errors come from SnapshotWatch::Next. No timeout
  /// unless `options` has one.
  SnapshotWatch WatchSnapshots(const std::string& cache, bool existing, const CallOptions& options = {}) const;

  /// A snapshot to and from a safetensors file. A transfer that breaks goes on where it stood, as often as it takes
  /// within the timeout, which is that of the whole transfer. The new file takes its name when it is complete.
  absl::StatusOr<ExportedSnapshot> ExportSnapshot(const std::string& cache, const std::string& key,
                                                  const std::string& path, const CallOptions& options = {}) const;
  /// Under the file's own key when `key` is empty. RESOURCE_EXHAUSTED when there is no room; the outcome is kStored or
  /// kPresent.
  absl::StatusOr<SnapshotOutcome> ImportSnapshot(const std::string& cache, const std::string& path,
                                                 const std::string& key = "", const CallOptions& options = {}) const;

 private:
  explicit Client(std::shared_ptr<const client::Connection> connection);

  std::shared_ptr<const client::Connection> connection_;
};

}  // namespace gdpcache

#endif  // GDPCACHE_CLIENT_H_
