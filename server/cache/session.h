#ifndef GDPCACHE_SERVER_CACHE_SESSION_H_
#define GDPCACHE_SERVER_CACHE_SESSION_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/cache.h"
#include "server/cache/memory/session_regions.h"
#include "server/cache/memory_budget.h"
#include "server/cache/tenant_share.h"

namespace gdpcache::cache {

/// Whose snapshots a caller uses that nothing is known of.
inline constexpr absl::string_view kDefaultTenant = "default";

/// A caller's lease on slots of one cache. Thread-safe; made and ended by the Catalog.
class Session : public std::enable_shared_from_this<Session> {
 public:
  /// A running call of the session. While it lives the session's slots stay with the session, even after its end.
  /// Movable.
  class Call {
   public:
    Call() = default;
    Call(Call&& other) noexcept : session_(std::move(other.session_)), entry_(other.entry_) {}
    Call& operator=(Call&& other) noexcept {
      if (this != &other) {
        End();
        session_ = std::move(other.session_);
        entry_ = other.entry_;
      }
      return *this;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() { End(); }
    /// Tells the session that the call touches nothing of it any more.
    void End();

   private:
    friend class Session;
    using Entry = std::list<absl::AnyInvocable<void()>>::iterator;
    Call(std::shared_ptr<Session> session, Entry entry) : session_(std::move(session)), entry_(entry) {}
    std::shared_ptr<Session> session_;
    Entry entry_;
  };

  Session(std::string id, SessionKey key, std::shared_ptr<Cache> cache, absl::Duration ttl, std::string client_name,
          absl::Time expires_at, std::string tenant = std::string(kDefaultTenant),
          std::shared_ptr<MemoryBudget> tenant_slots = nullptr, std::shared_ptr<TenantUse> tenant_use = nullptr)
      : id_(std::move(id)),
        key_(key),
        cache_(std::move(cache)),
        ttl_(ttl),
        client_name_(std::move(client_name)),
        tenant_(std::move(tenant)),
        tenant_slots_(std::move(tenant_slots)),
        tenant_use_(std::move(tenant_use)),
        expires_at_(expires_at) {}

  const std::string& id() const { return id_; }
  SessionKey key() const { return key_; }
  const std::shared_ptr<Cache>& cache() const { return cache_; }
  absl::Duration ttl() const { return ttl_; }
  const std::string& client_name() const { return client_name_; }
  const std::string& tenant() const { return tenant_; }
  absl::Time expires_at() const;

  /// What its tenant uses; nullptr where that is not limited.
  const std::shared_ptr<TenantUse>& tenant_use() const { return tenant_use_; }

  /// Memory that the caller shares with the server; closed when the session has ended and its calls have.
  SessionRegions& regions() { return regions_; }

  /// Counts `count` slots against what the sessions of its tenant may hold together. RESOURCE_EXHAUSTED names both
  /// values, and nothing is counted.
  absl::Status TakeSlots(std::int64_t count);
  void GiveBackSlots(std::int64_t count);
  /// All that are left; for the end of the session.
  void GiveBackAllSlots();

  /// Registers a call. `cancel` runs at most once, without a lock held, if the session ends before the call does: it
  /// must make the call end soon and must not block. It may still be running, on another thread, when the call ends.
  /// NOT_FOUND once the session has ended, UNAVAILABLE once it is drained.
  absl::StatusOr<Call> BeginCall(absl::AnyInvocable<void()> cancel);

  /// Moves the expiry to `now` + ttl; for calls that last. No effect once ended.
  void Renew(absl::Time now);

  /// Ends the session: no new calls, running ones are cancelled. `on_drained` runs once, without a lock held, when none
  /// is left: on this thread before End returns, or on the thread that ends the last call. False (and no on_drained) if
  /// the session had already ended.
  bool End(absl::AnyInvocable<void()> on_drained);

  /// As End, because the server stops: leaves the running calls to end by themselves, or by CancelCalls.
  bool Drain(absl::AnyInvocable<void()> on_drained);

  /// Cancels the running calls of a session that has ended. No effect before, or for calls cancelled already.
  void CancelCalls();

 private:
  /// `refusal` is what calls that come too late are told.
  bool EndWith(absl::Status refusal, absl::AnyInvocable<void()> on_drained);

  const std::string id_;
  const SessionKey key_;
  const std::shared_ptr<Cache> cache_;
  const absl::Duration ttl_;
  const std::string client_name_;
  const std::string tenant_;
  const std::shared_ptr<MemoryBudget> tenant_slots_;  // shared by the tenant's sessions; nullptr: without a limit
  const std::shared_ptr<TenantUse> tenant_use_;
  SessionRegions regions_;

  mutable std::mutex mutex_;
  absl::Time expires_at_;
  std::int64_t counted_slots_ = 0;
  bool ended_ = false;
  absl::Status refusal_;                         // once ended
  std::list<absl::AnyInvocable<void()>> calls_;  // each with its cancel
  absl::AnyInvocable<void()> on_drained_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SESSION_H_
