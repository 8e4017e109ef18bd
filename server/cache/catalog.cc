#include "server/cache/catalog.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"
#include "server/cache/session_id.h"

namespace gdpcache::cache {
namespace {

constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxFingerprintBytes = 1'024;
constexpr std::size_t kMaxClientNameBytes = 128;
constexpr absl::Duration kMinSessionTtl = absl::Milliseconds(100);

// When a full server may have room again is up to its users; these only keep clients from asking in a tight loop.
constexpr absl::Duration kRetryCacheAfter = absl::Seconds(5);
constexpr absl::Duration kRetrySessionAfter = absl::Seconds(1);

absl::Status CheckCacheName(absl::string_view field, absl::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return InvalidField(
        field, absl::StrCat("has ", Counted(std::ssize(name), "character"), "; it must have 1 to ", kMaxNameBytes));
  }
  const auto is_allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::string_view("._-/").find(c) != std::string::npos;
  };
  if (!std::all_of(name.begin(), name.end(), is_allowed)) {
    return InvalidField(field, absl::StrCat("is ", Quoted(name), "; it may have letters, digits and . _ - / only"));
  }
  return absl::OkStatus();
}

absl::Status CheckClientName(absl::string_view name) {
  if (name.size() > kMaxClientNameBytes) {
    return InvalidField("client_name",
                        absl::StrCat("has ", name.size(), " bytes; it may have at most ", kMaxClientNameBytes));
  }
  const auto is_control = [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); };
  if (std::any_of(name.begin(), name.end(), is_control)) {
    return InvalidField("client_name", absl::StrCat("is ", Quoted(name), "; it may not have control characters"));
  }
  return absl::OkStatus();
}

absl::Status NoSuchCache(absl::string_view name) {
  return ResourceError(absl::StatusCode::kNotFound, "cache", name, absl::StrCat("there is no cache ", Quoted(name)));
}

absl::Status NoSuchSession(absl::string_view id) {
  return ResourceError(absl::StatusCode::kNotFound, "session", id,
                       "there is no such session; it may have expired or been closed");
}

absl::Status NoStateMemory(std::int64_t charge, const MemoryBudget& budget, absl::string_view whose) {
  const std::string message =
      absl::StrCat("the cache needs ", charge, " bytes; ", std::max<std::int64_t>(0, budget.limit() - budget.used()),
                   " of ", whose, " ", budget.limit(), " bytes of state memory are free");
  if (charge > budget.limit()) return absl::ResourceExhaustedError(message);  // no use to try again
  return Exhausted(message, kRetryCacheAfter);
}

absl::Status CheckSame(const CacheSpec& existing, const CacheSpec& wanted) {
  std::string difference = DescribeDifference(existing.geometry, wanted.geometry);
  const absl::string_view separator = difference.empty() ? "" : "; ";
  if (existing.fingerprint != wanted.fingerprint) {
    absl::StrAppend(&difference, separator, "fingerprint is ", Quoted(existing.fingerprint), ", not ",
                    Quoted(wanted.fingerprint));
  }
  if (existing.ephemeral != wanted.ephemeral) {
    absl::StrAppend(&difference, difference.empty() ? "" : "; ", "ephemeral is ", existing.ephemeral ? "true" : "false",
                    ", not ", wanted.ephemeral ? "true" : "false");
  }
  if (difference.empty()) return absl::OkStatus();
  return ResourceError(absl::StatusCode::kAlreadyExists, "cache", existing.name,
                       absl::StrCat("cache ", Quoted(existing.name), " exists and differs: ", difference));
}

}  // namespace

struct Catalog::Holding {
  /// `the_makers_budget` may be nullptr.
  Holding(std::shared_ptr<MemoryBudget> the_budget, std::shared_ptr<MemoryBudget> the_makers_budget,
          std::int64_t the_charge)
      : budget(std::move(the_budget)), makers_budget(std::move(the_makers_budget)), charge(the_charge) {}
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;
  ~Holding() {
    cache.reset();
    if (makers_budget != nullptr) makers_budget->GiveBack(charge);
    budget->GiveBack(charge);
    if (on_freed) on_freed();
  }

  const std::shared_ptr<MemoryBudget> budget;
  const std::shared_ptr<MemoryBudget> makers_budget;
  const std::int64_t charge;
  std::shared_ptr<Cache> cache;
  absl::AnyInvocable<void()> on_freed;
};

Catalog::Catalog(kernels::Backend& backend, const Clock& clock, const CatalogLimits& limits,
                 std::function<void(SessionKey)> on_session_end, TaskThread* thread)
    : backend_(backend),
      clock_(clock),
      limits_(limits),
      on_session_end_(std::move(on_session_end)),
      thread_(thread),
      budget_(std::make_shared<MemoryBudget>(limits.state_memory_bytes)) {}

Catalog::~Catalog() {
  if (thread_ != nullptr) thread_->Finish();
}

std::shared_ptr<Cache> Catalog::CacheOf(const Entry& entry) {
  // Whoever holds the cache holds its memory charge, too.
  return std::shared_ptr<Cache>(entry.holding, entry.holding->cache.get());
}

absl::Status Catalog::CheckServingLocked() const {
  if (draining_) return absl::UnavailableError("the server is draining");
  return absl::OkStatus();
}

absl::StatusOr<Catalog::Created> Catalog::CreateCache(const CacheSpec& spec, absl::string_view tenant) {
  if (absl::Status status = CheckCacheName("name", spec.name); !status.ok()) return status;
  if (absl::Status status = spec.geometry.Validate(); !status.ok()) return status;
  if (spec.fingerprint.size() > kMaxFingerprintBytes) {
    return InvalidField("fingerprint", absl::StrCat("has ", spec.fingerprint.size(), " bytes; it may have at most ",
                                                    kMaxFingerprintBytes));
  }

  const std::lock_guard create_lock(create_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (absl::Status status = CheckServingLocked(); !status.ok()) return status;
    if (const auto found = caches_.find(spec.name); found != caches_.end()) {
      std::shared_ptr<Cache> existing = CacheOf(found->second);
      if (absl::Status status = CheckSame(existing->spec(), spec); !status.ok()) return status;
      return Created{std::move(existing), found->second.sessions, false};
    }
    if (static_cast<std::int64_t>(caches_.size()) >= limits_.max_caches) {
      return Exhausted(absl::StrCat("the server has ", Counted(std::ssize(caches_), "cache"), "; it may have at most ",
                                    limits_.max_caches),
                       kRetryCacheAfter);
    }
    const std::int64_t own = std::count_if(caches_.begin(), caches_.end(),
                                           [tenant](const auto& cache) { return cache.second.maker == tenant; });
    if (!tenant.empty() && limits_.max_tenant_caches > 0 && own >= limits_.max_tenant_caches) {
      return Exhausted(absl::StrCat("the tenant has made ", Counted(own, "cache"),
                                    " of those that there are; it may have at most ", limits_.max_tenant_caches),
                       kRetryCacheAfter);
    }
  }

  const std::int64_t charge = spec.geometry.memory_charge();
  if (!budget_->TryTake(charge)) return NoStateMemory(charge, *budget_, "the server's");
  std::shared_ptr<MemoryBudget> own = tenant.empty() ? nullptr : BudgetOf(UseOf(tenant), &TenantUse::states);
  if (own != nullptr && !own->TryTake(charge)) {
    budget_->GiveBack(charge);
    return NoStateMemory(charge, *own, "the tenant's");
  }
  Entry entry{std::make_shared<Holding>(budget_, std::move(own), charge), 0, std::string(tenant)};
  absl::StatusOr<std::shared_ptr<Cache>> cache = Cache::Create(backend_, spec);
  if (!cache.ok()) return cache.status();
  entry.holding->cache = *std::move(cache);
  if (thread_ != nullptr) entry.holding = thread_->EndHere(std::move(entry.holding));

  Created created{CacheOf(entry), 0, true};
  const std::lock_guard lock(mutex_);
  caches_.emplace(spec.name, std::move(entry));
  return created;
}

absl::StatusOr<std::shared_ptr<Cache>> Catalog::FindCache(absl::string_view name) const {
  if (absl::Status status = CheckCacheName("cache", name); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  const auto found = caches_.find(name);
  if (found == caches_.end()) return NoSuchCache(name);
  return CacheOf(found->second);
}

absl::Status Catalog::DeleteCache(absl::string_view name, bool force, absl::AnyInvocable<void()> on_deleted) {
  if (absl::Status status = CheckCacheName("name", name); !status.ok()) return status;
  std::shared_ptr<Holding> holding;
  std::vector<Removed> removed;
  {
    const std::lock_guard lock(mutex_);
    const auto found = caches_.find(name);
    if (found == caches_.end()) return NoSuchCache(name);
    if (found->second.sessions > 0 && !force) {
      return ResourceError(
          absl::StatusCode::kFailedPrecondition, "cache", name,
          absl::StrCat("cache ", Quoted(name), " has ", Counted(found->second.sessions, "open session"),
                       "; close them or delete with force"));
    }
    holding = std::move(found->second.holding);
    caches_.erase(found);
    holding->on_freed = std::move(on_deleted);
    std::vector<std::shared_ptr<Session>> sessions;
    for (const auto& [id, session] : open_) {
      if (session->cache() == holding->cache) sessions.push_back(session);
    }
    for (std::shared_ptr<Session>& session : sessions) removed.push_back(RemoveLocked(std::move(session)));
  }
  for (const Removed& session : removed) End(session, [] {});
  return absl::OkStatus();
}

std::vector<Catalog::CacheSummary> Catalog::ListCaches() const {
  std::vector<CacheSummary> summaries;
  const std::lock_guard lock(mutex_);
  summaries.reserve(caches_.size());
  for (const auto& [name, entry] : caches_) summaries.push_back({CacheOf(entry), entry.sessions});
  return summaries;
}

absl::StatusOr<std::shared_ptr<Session>> Catalog::OpenSession(absl::string_view cache, absl::Duration ttl,
                                                              std::string client_name, std::string tenant) {
  if (absl::Status status = CheckCacheName("cache", cache); !status.ok()) return status;
  if (absl::Status status = CheckClientName(client_name); !status.ok()) return status;
  if (ttl == absl::ZeroDuration()) ttl = limits_.default_session_ttl;
  if (ttl < kMinSessionTtl || ttl > limits_.max_session_ttl) {
    return InvalidField("ttl_ms", absl::StrCat("is ", absl::ToInt64Milliseconds(ttl), "; it must be from ",
                                               absl::ToInt64Milliseconds(kMinSessionTtl), " to ",
                                               absl::ToInt64Milliseconds(limits_.max_session_ttl), ", or 0 for ",
                                               absl::ToInt64Milliseconds(limits_.default_session_ttl)));
  }
  absl::StatusOr<std::string> id = NewSessionId();
  if (!id.ok()) return id.status();
  const absl::Time expires_at = clock_.Now() + ttl;

  const std::lock_guard lock(mutex_);
  if (absl::Status status = CheckServingLocked(); !status.ok()) return status;
  const auto found = caches_.find(cache);
  if (found == caches_.end()) return NoSuchCache(cache);
  if (static_cast<std::int64_t>(living_.size()) >= limits_.max_sessions) {
    return Exhausted(absl::StrCat("the server has ", Counted(std::ssize(living_), "session"), "; it may have at most ",
                                  limits_.max_sessions),
                     kRetrySessionAfter);
  }
  const auto own = tenants_.find(tenant);
  if (own != tenants_.end() && limits_.max_tenant_sessions > 0 && own->second.sessions >= limits_.max_tenant_sessions) {
    return Exhausted(absl::StrCat("the tenant has ", Counted(own->second.sessions, "session"), "; it may have at most ",
                                  limits_.max_tenant_sessions),
                     kRetrySessionAfter);
  }
  Tenant& counts = tenants_[tenant];
  if (++counts.sessions == 1 && limits_.max_tenant_slots > 0) {
    counts.slots = std::make_shared<MemoryBudget>(limits_.max_tenant_slots);
  }
  const SessionKey key = next_key_++;
  auto session = std::make_shared<Session>(*id, key, CacheOf(found->second), ttl, std::move(client_name), expires_at,
                                           tenant, counts.slots, UseOfLocked(tenant));
  ++found->second.sessions;
  open_.emplace(*std::move(id), session);
  living_.emplace(key, Living{session, expires_at});
  expiry_.emplace(expires_at, key);
  return session;
}

std::shared_ptr<TenantUse> Catalog::UseOf(absl::string_view tenant) {
  const std::lock_guard lock(mutex_);
  return UseOfLocked(tenant);
}

std::shared_ptr<TenantUse> Catalog::UseOfLocked(absl::string_view tenant) {
  if (limits_.max_tenant_calls == 0) return nullptr;
  std::shared_ptr<TenantUse>& use = uses_[tenant];
  if (use == nullptr)
    use =
        std::make_shared<TenantUse>(limits_.max_tenant_calls, limits_.tenant_staging_bytes, limits_.tenant_state_bytes);
  return use;
}

absl::StatusOr<std::shared_ptr<Session>> Catalog::FindOpenLocked(absl::string_view id, absl::string_view tenant) const {
  if (absl::Status status = CheckServingLocked(); !status.ok()) return status;
  const auto found = open_.find(id);
  if (found == open_.end() || found->second->tenant() != tenant) return NoSuchSession(id);
  return found->second;
}

absl::StatusOr<std::shared_ptr<Session>> Catalog::FindSession(absl::string_view id, absl::string_view tenant) {
  const absl::Time now = clock_.Now();
  Removed expired;
  {
    const std::lock_guard lock(mutex_);
    absl::StatusOr<std::shared_ptr<Session>> found = FindOpenLocked(id, tenant);
    if (!found.ok()) return found.status();
    if ((*found)->expires_at() > now) {
      (*found)->Renew(now);
      return found;
    }
    expired = RemoveLocked(*std::move(found));
  }
  End(expired, [] {});
  return NoSuchSession(id);
}

absl::Status Catalog::CloseSession(absl::string_view id, absl::string_view tenant,
                                   absl::AnyInvocable<void()> on_closed) {
  Removed removed;
  {
    const std::lock_guard lock(mutex_);
    absl::StatusOr<std::shared_ptr<Session>> found = FindOpenLocked(id, tenant);
    if (!found.ok()) return found.status();
    removed = RemoveLocked(*std::move(found));
  }
  End(removed, std::move(on_closed));
  return absl::OkStatus();
}

std::optional<Catalog::Holder> Catalog::FindHolder(SessionKey session) const {
  const std::lock_guard lock(mutex_);
  const auto found = living_.find(session);
  if (found == living_.end()) return std::nullopt;
  const Session& holder = *found->second.session;
  return Holder{holder.client_name(), holder.tenant(), holder.expires_at()};
}

absl::Time Catalog::ExpireSessions() {
  const absl::Time now = clock_.Now();
  absl::Time next = absl::InfiniteFuture();
  std::vector<Removed> expired;
  {
    const std::lock_guard lock(mutex_);
    while (!expiry_.empty()) {
      const auto [indexed, key] = *expiry_.begin();
      Living& living = living_.at(key);
      const absl::Time expires_at = living.session->expires_at();
      if (expires_at > indexed) {  // renewed since
        expiry_.erase(expiry_.begin());
        expiry_.emplace(expires_at, key);
        living.indexed = expires_at;
        continue;
      }
      if (expires_at > now) {
        next = expires_at;
        break;
      }
      expired.push_back(RemoveLocked(living.session));
    }
  }
  for (Removed& session : expired) End(session, [] {});
  return next;
}

void Catalog::Drain(absl::AnyInvocable<void()> on_drained) {
  std::vector<Removed> removed;
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    while (!open_.empty()) removed.push_back(RemoveLocked(open_.begin()->second));
    if (!living_.empty()) on_no_sessions_.push_back(std::exchange(on_drained, nullptr));
  }
  for (Removed& session : removed) session.session->Drain(Finisher(session.session, [] {}));
  if (on_drained) on_drained();
}

void Catalog::CloseAllSessions(absl::AnyInvocable<void()> on_closed) {
  std::vector<Removed> removed;
  std::vector<std::shared_ptr<Session>> ended;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, living] : living_) {
      if (!open_.contains(living.session->id())) ended.push_back(living.session);
    }
    while (!open_.empty()) removed.push_back(RemoveLocked(open_.begin()->second));
    if (!living_.empty()) on_no_sessions_.push_back(std::exchange(on_closed, nullptr));
  }
  for (const std::shared_ptr<Session>& session : ended) session->CancelCalls();
  for (const Removed& session : removed) End(session, [] {});
  if (on_closed) on_closed();
}

bool Catalog::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

std::int64_t Catalog::session_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(living_.size());
}

Catalog::Removed Catalog::RemoveLocked(std::shared_ptr<Session> session) {
  Removed removed;
  open_.erase(session->id());
  expiry_.erase({living_.at(session->key()).indexed, session->key()});
  const auto found = caches_.find(session->cache()->spec().name);
  // The name may stand for a new cache by now.
  if (found != caches_.end() && found->second.holding->cache == session->cache()) {
    if (--found->second.sessions == 0 && session->cache()->spec().ephemeral) {
      removed.unused_cache = std::move(found->second.holding);
      caches_.erase(found);
    }
  }
  removed.session = std::move(session);
  return removed;
}

void Catalog::End(const Removed& removed, absl::AnyInvocable<void()> on_closed) {
  removed.session->End(Finisher(removed.session, std::move(on_closed)));
}

absl::AnyInvocable<void()> Catalog::Finisher(std::shared_ptr<Session> session, absl::AnyInvocable<void()> on_closed) {
  return [this, session = std::move(session), on_closed = std::move(on_closed)]() mutable {
    if (on_session_end_) on_session_end_(session->key());
    session->cache()->slots().ReleaseAll(session->key());
    session->GiveBackAllSlots();
    if (thread_ == nullptr) return Forget(std::move(session), std::move(on_closed));
    thread_->Run([this, session = std::move(session), on_closed = std::move(on_closed)]() mutable {
      Forget(std::move(session), std::move(on_closed));
    });
  };
}

void Catalog::Forget(std::shared_ptr<Session> session, absl::AnyInvocable<void()> on_closed) {
  session->regions().Close();
  std::vector<absl::AnyInvocable<void()>> on_no_sessions;
  {
    const std::lock_guard lock(mutex_);
    living_.erase(session->key());
    if (const auto own = tenants_.find(session->tenant()); --own->second.sessions == 0) tenants_.erase(own);
    if (living_.empty()) on_no_sessions.swap(on_no_sessions_);
  }
  session.reset();
  on_closed();
  for (absl::AnyInvocable<void()>& callback : on_no_sessions) callback();  // `this` may be gone after the first
}

}  // namespace gdpcache::cache
