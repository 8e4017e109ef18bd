#ifndef GDPCACHE_SERVER_CACHE_CATALOG_H_
#define GDPCACHE_SERVER_CACHE_CATALOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "server/cache/cache.h"
#include "server/cache/clock.h"
#include "server/cache/session.h"

namespace gdpcache::cache {

struct CatalogLimits {
  std::int64_t max_caches = 0;
  std::int64_t max_sessions = 0;
  std::int64_t state_memory_bytes = 0;  // all caches together
  absl::Duration default_session_ttl;
  absl::Duration max_session_ttl;
};

/// All caches and sessions of the server. Thread-safe. Memory of a cache is counted until its last user has let go of
/// it.
class Catalog {
 public:
  Catalog(kernels::Backend& backend, const Clock& clock, const CatalogLimits& limits);
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;
  ~Catalog();  // every session must have ended

  struct Created {
    std::shared_ptr<Cache> cache;
    bool created = false;  // false: it existed with the same geometry, fingerprint and ephemeral flag
  };
  /// Errors as cache.proto and state_cache.proto say.
  absl::StatusOr<Created> CreateCache(const CacheSpec& spec);
  absl::StatusOr<std::shared_ptr<Cache>> FindCache(absl::string_view name) const;
  /// `on_deleted` runs once when the deletion is complete, maybe before the call returns; not after an error.
  absl::Status DeleteCache(absl::string_view name, bool force, absl::AnyInvocable<void()> on_deleted);

  struct CacheSummary {
    std::shared_ptr<Cache> cache;
    std::int64_t sessions = 0;
  };
  std::vector<CacheSummary> ListCaches() const;  // by name

  /// `ttl` zero takes the default.
  absl::StatusOr<std::shared_ptr<Session>> OpenSession(absl::string_view cache, absl::Duration ttl,
                                                       std::string client_name);
  /// Also renews the session's lease.
  absl::StatusOr<std::shared_ptr<Session>> FindSession(absl::string_view id);
  /// Ends the session; `on_closed` runs once its calls have ended and its slots are free, maybe before the call
  /// returns; not after an error.
  absl::Status CloseSession(absl::string_view id, absl::AnyInvocable<void()> on_closed);
  std::optional<std::string> ClientName(SessionKey session) const;
  std::optional<absl::Time> ExpiresAt(SessionKey session) const;

  /// Ends every session whose lease has run out by the clock, and returns when the next one will (InfiniteFuture if
  /// none).
  absl::Time ExpireSessions();
  /// Ends all sessions; `on_closed` runs when the last one is gone. For shutdown.
  void CloseAllSessions(absl::AnyInvocable<void()> on_closed);

  std::int64_t state_memory_used() const;
  std::int64_t session_count() const;

  // Private members: the implementation's choice.
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_CATALOG_H_
