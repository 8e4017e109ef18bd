#ifndef GDPCACHE_CLIENT_H_
#define GDPCACHE_CLIENT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gdpcache/cache.h"
#include "gdpcache/error_details.h"
#include "gdpcache/options.h"
#include "gdpcache/prefill.h"
#include "gdpcache/session.h"
#include "gdpcache/tensor.h"

namespace gdpcache {

namespace client {
class Connection;
}  // namespace client

/// What grpc.health.v1 says.
enum class ServingStatus { kUnknown, kServing, kNotServing };

/// INVALID_ARGUMENT unless `address` is "host:port" (an IPv6 host in brackets) or "unix:PATH".
absl::Status CheckAddress(absl::string_view address);

/// Asks whether the server at `address` is serving, without any other call.
absl::StatusOr<ServingStatus> CheckHealth(const std::string& address, const ClientOptions& options = {});

/// A connection to one server, renewed by itself when it breaks. Safe for use by several threads at once, except for
/// moving and destruction. Sessions may outlive it.
class Client {
 public:
  /// Connects and asks the server who it is. UNAVAILABLE when nobody answers; UNIMPLEMENTED when it is something else.
  static absl::StatusOr<Client> Connect(const std::string& address, const ClientOptions& options = {});

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  const std::string& address() const;

  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& options = {}) const;

  /// Creating a cache that exists with the same geometry and fingerprint returns it.
  absl::StatusOr<CreatedCache> CreateCache(const CacheSpec& spec, const CallOptions& options = {}) const;

  /// `force` ends the cache's sessions first; without it open sessions are FAILED_PRECONDITION.
  absl::Status DeleteCache(const std::string& name, bool force = false, const CallOptions& options = {}) const;
  absl::StatusOr<std::vector<CacheInfo>> ListCaches(const CallOptions& options = {}) const;
  absl::StatusOr<SlotList> ListSlots(const std::string& cache, const CallOptions& options = {}) const;

  absl::StatusOr<Session> OpenSession(const std::string& cache, const SessionOptions& session = {},
                                      const CallOptions& options = {}) const;

 private:
  explicit Client(std::shared_ptr<const client::Connection> connection);

  std::shared_ptr<const client::Connection> connection_;
};

}  // namespace gdpcache

#endif  // GDPCACHE_CLIENT_H_
