#ifndef GDPCACHE_SERVER_CACHE_CATALOG_H_
#define GDPCACHE_SERVER_CACHE_CATALOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
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
#include "server/cache/memory_budget.h"
#include "server/cache/session.h"
#include "server/cache/task_thread.h"

namespace gdpcache::cache {

struct CatalogLimits {
  std::int64_t max_caches = 0;
  std::int64_t max_sessions = 0;
  std::int64_t max_tenant_sessions = 0;   // of one tenant; 0: as many as there may be
  std::int64_t max_tenant_slots = 0;      // held by one tenant's sessions, of all caches; 0: as many as there are
  std::int64_t max_tenant_caches = 0;     // made by one tenant; 0: as many as there may be
  std::int64_t max_tenant_calls = 0;      // under way, of one tenant; 0: as many as there may be
  std::int64_t tenant_staging_bytes = 0;  // of one tenant, where it may not have as many calls as there may be
  std::int64_t tenant_state_bytes = 0;    // of the caches that one tenant has made, the same way
  std::int64_t state_memory_bytes = 0;    // all caches together
  absl::Duration default_session_ttl;
  absl::Duration max_session_ttl;
};

/// All caches and sessions of the server. Thread-safe. Memory of a cache is counted until its last user has let go of
/// it.
class Catalog {
 public:
  /// `on_session_end` runs once for each session, when its calls have ended and before its slots count as free. Memory
  /// of sessions and caches goes on `thread`, which must outlive them and the catalog; nullptr: on whichever thread
  /// uses it last.
  Catalog(kernels::Backend& backend, const Clock& clock, const CatalogLimits& limits,
          std::function<void(SessionKey)> on_session_end = nullptr, TaskThread* thread = nullptr);
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;
  ~Catalog();  // every session must have ended

  struct Created {
    std::shared_ptr<Cache> cache;
    std::int64_t sessions = 0;  // open ones
    bool created = false;       // false: it existed with the same geometry, fingerprint and ephemeral flag
  };
  /// Errors as cache.proto and state_cache.proto say. `tenant` is who makes it; empty: the server itself.
  absl::StatusOr<Created> CreateCache(const CacheSpec& spec, absl::string_view tenant = "");
  absl::StatusOr<std::shared_ptr<Cache>> FindCache(absl::string_view name) const;
  /// The name is free at once; `on_deleted` runs once when the memory is, maybe before the call returns and on the
  /// thread that the cache goes on, so it must be short and take no lock that a user of the cache may hold. It does not
  /// run after an error.
  absl::Status DeleteCache(absl::string_view name, bool force, absl::AnyInvocable<void()> on_deleted);

  struct CacheSummary {
    std::shared_ptr<Cache> cache;
    std::int64_t sessions = 0;
  };
  std::vector<CacheSummary> ListCaches() const;  // by name

  /// `ttl` zero takes the default.
  absl::StatusOr<std::shared_ptr<Session>> OpenSession(absl::string_view cache, absl::Duration ttl,
                                                       std::string client_name,
                                                       std::string tenant = std::string(kDefaultTenant));
  /// Also renews the session's lease. To another tenant than its own it is NOT_FOUND, like one that never was.
  absl::StatusOr<std::shared_ptr<Session>> FindSession(absl::string_view id, absl::string_view tenant);
  /// Ends the session; `on_closed` runs once its calls have ended, its slots are free and its regions have been let go
  /// of, maybe before the call returns; not after an error.
  absl::Status CloseSession(absl::string_view id, absl::string_view tenant, absl::AnyInvocable<void()> on_closed);
  struct Holder {
    std::string client_name;
    std::string tenant;
    absl::Time expires_at;
  };
  /// None when the session is gone.
  std::optional<Holder> FindHolder(SessionKey session) const;

  /// Ends every session whose lease has run out by the clock, and returns when the next one will (InfiniteFuture if
  /// none).
  absl::Time ExpireSessions();
  /// From now on whatever names a session or makes a session or cache is UNAVAILABLE; sessions end as soon as their
  /// running calls have. `on_drained` runs when the last one is gone.
  void Drain(absl::AnyInvocable<void()> on_drained);
  bool draining() const;
  /// Ends all sessions; `on_closed` runs when the last one is gone. For shutdown.
  void CloseAllSessions(absl::AnyInvocable<void()> on_closed);

  /// What a tenant uses of calls and memory, whatever its sessions; nullptr where that is not limited.
  std::shared_ptr<TenantUse> UseOf(absl::string_view tenant);

  std::int64_t state_memory_used() const { return budget_->used(); }
  /// Sessions that are open, and ended ones whose calls have not.
  std::int64_t session_count() const;

 private:
  struct Holding;  // a cache with what it counts for
  struct Entry {
    std::shared_ptr<Holding> holding;
    std::int64_t sessions = 0;  // open ones
    std::string maker = {};     // the tenant
  };
  struct Living {
    std::shared_ptr<Session> session;
    absl::Time indexed;  // its place in expiry_; never later than its expiry
  };
  // What sessions of one tenant have; there as long as it has any.
  struct Tenant {
    std::int64_t sessions = 0;            // in living_
    std::shared_ptr<MemoryBudget> slots;  // nullptr: without a limit
  };
  // A session that has just stopped being open; its End is to be called without the lock.
  struct Removed {
    std::shared_ptr<Session> session;
    std::shared_ptr<Holding> unused_cache;  // an ephemeral cache that went with it
  };

  static std::shared_ptr<Cache> CacheOf(const Entry& entry);
  std::shared_ptr<TenantUse> UseOfLocked(absl::string_view tenant);
  absl::StatusOr<std::shared_ptr<Session>> FindOpenLocked(absl::string_view id, absl::string_view tenant) const;
  Removed RemoveLocked(std::shared_ptr<Session> session);
  void End(const Removed& removed, absl::AnyInvocable<void()> on_closed);
  absl::AnyInvocable<void()> Finisher(std::shared_ptr<Session> session, absl::AnyInvocable<void()> on_closed);
  void Forget(std::shared_ptr<Session> session, absl::AnyInvocable<void()> on_closed);
  absl::Status CheckServingLocked() const;

  kernels::Backend& backend_;
  const Clock& clock_;
  const CatalogLimits limits_;
  const std::function<void(SessionKey)> on_session_end_;
  TaskThread* const thread_;
  const std::shared_ptr<MemoryBudget> budget_;  // shared with the caches, which may outlive the catalog

  std::mutex create_mutex_;  // one creation at a time; taken before mutex_
  mutable std::mutex mutex_;
  bool draining_ = false;
  std::map<std::string, Entry, std::less<>> caches_;
  absl::flat_hash_map<std::string, std::shared_ptr<Session>> open_;  // by id
  absl::flat_hash_map<SessionKey, Living> living_;                   // open ones, and ended ones with calls left
  absl::flat_hash_map<std::string, Tenant> tenants_;
  absl::flat_hash_map<std::string, std::shared_ptr<TenantUse>> uses_;  // for good: identities name the tenants
  std::set<std::pair<absl::Time, SessionKey>> expiry_;                 // of open ones
  SessionKey next_key_ = 1;
  std::vector<absl::AnyInvocable<void()>> on_no_sessions_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_CATALOG_H_
