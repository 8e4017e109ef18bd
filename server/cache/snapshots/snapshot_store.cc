#include "server/cache/snapshots/snapshot_store.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"
#include "server/cache/snapshots/store_state.h"
#include "server/cache/snapshots/tier_movers.h"

namespace gdpcache::cache {
namespace {

// How many keys and snapshots are looked at without letting others to the store.
constexpr std::size_t kKeysAtOnce = 64;
constexpr std::int64_t kSummariesAtOnce = 256;
constexpr std::size_t kDeletionsAtOnce = 16;

// Pins end by themselves, watchers go away; there is no telling when.
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

/// Of a counter that only grows, with what a client can make as large as it likes: it stays at the most there is.
std::int64_t SumOrMost(std::int64_t count, std::int64_t more) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return more > kMost - count ? kMost : count + more;
}

absl::Status NoSuchSnapshot() { return absl::NotFoundError("there is no snapshot of this key"); }

SnapshotOutcome NoSpace(std::int64_t position, absl::string_view message) {
  return {SnapshotResult::kNoSpace, position, std::string(message)};
}

SnapshotOutcome Present(StoreState& state, SnapshotEntry& entry) {
  state.UseLocked(entry);
  return {SnapshotResult::kPresent, entry.position, ""};
}

}  // namespace

// Drafts.

class SnapshotDraft::Memory {
 public:
  Memory(StoreState& state, std::shared_ptr<PendingSnapshot> pending, std::int64_t layer, std::size_t level)
      : state_(state), pending_(std::move(pending)), layer_(layer), level_(level) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    memory = SnapshotMemory();
    const std::lock_guard lock(state_.mutex);
    --pending_->open_drafts;
    // It was all there was of the snapshot.
    if (!pending_->gone && pending_->open_drafts == 0 && pending_->parts.empty() && pending_->failure.empty()) {
      state_.EndPendingLocked(*pending_);
    }
  }

  std::int64_t layer() const { return layer_; }
  std::size_t level() const { return level_; }
  const std::shared_ptr<PendingSnapshot>& pending() const { return pending_; }

  SnapshotMemory memory;

 private:
  StoreState& state_;
  const std::shared_ptr<PendingSnapshot> pending_;
  const std::int64_t layer_;
  const std::size_t level_;
};

SnapshotDraft::SnapshotDraft() = default;
SnapshotDraft::SnapshotDraft(SnapshotOutcome outcome) : outcome_(std::move(outcome)) {}
SnapshotDraft::SnapshotDraft(SnapshotOutcome outcome, std::unique_ptr<Memory> memory)
    : outcome_(std::move(outcome)), memory_(std::move(memory)) {}
SnapshotDraft::SnapshotDraft(SnapshotDraft&& other) noexcept = default;
SnapshotDraft& SnapshotDraft::operator=(SnapshotDraft&& other) noexcept = default;
SnapshotDraft::~SnapshotDraft() = default;

absl::Span<const SnapshotPart> SnapshotDraft::parts() const {
  return memory_ == nullptr ? absl::Span<const SnapshotPart>() : memory_->memory.parts();
}

// The store.

absl::StatusOr<std::unique_ptr<SnapshotStore>> SnapshotStore::Create(kernels::Backend& backend, const Clock& clock,
                                                                     std::vector<StoreTier> tiers,
                                                                     SnapshotOptions options) {
  for (std::size_t level = 0; level < tiers.size(); ++level) {
    const StoreTier& tier = tiers[level];
    const absl::string_view name = Name(tier.tier->kind());
    if (level > 0 && tiers[level - 1].tier->kind() >= tier.tier->kind()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ", name, " tier comes after the ", Name(tiers[level - 1].tier->kind()), " tier"));
    }
    if (tier.tier->memory() == nullptr && (level == 0 || level + 1 < tiers.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ", name, " tier needs a memory tier before it, and none after"));
    }
    if (tier.low_watermark < 0 || tier.low_watermark > tier.high_watermark) {
      return absl::InvalidArgumentError(absl::StrCat("the ", name, " tier's low watermark is ", tier.low_watermark,
                                                     "; the high one is ", tier.high_watermark));
    }
  }
  std::unique_ptr<SnapshotStore> store(
      new SnapshotStore(std::make_unique<StoreState>(backend, clock, std::move(tiers), std::move(options))));
  absl::StatusOr<std::unique_ptr<TierMovers>> movers = TierMovers::Start(*store->state_);
  if (!movers.ok()) return movers.status();
  store->movers_ = *std::move(movers);
  return store;
}

SnapshotStore::SnapshotStore(std::unique_ptr<StoreState> state) : state_(std::move(state)) {}

SnapshotStore::~SnapshotStore() = default;

void SnapshotStore::Recover(const SnapshotRecord& record, std::shared_ptr<TierCopy> copy) {
  StoreState& state = *state_;
  Aftermath aftermath(state);
  const std::lock_guard lock(state.mutex);
  if (state.index.Find(record.space, record.key) != nullptr) return;
  const std::shared_ptr<SpaceIndex> space = state.index.AddUser(record.space);
  if (state.MakeIndexRoomLocked(aftermath).ok() &&
      state.ChargeLocked(space->tenant, record.space.snapshot_bytes(), aftermath).ok()) {
    state.index.Add(space, record.key, record.position, state.clock.Now(), state.last(), std::move(copy),
                    /*recovered=*/true);
    state.CheckWatermarkLocked(state.last());
  } else {
    state.DiscardLocked(state.last(), std::move(copy));
  }
  state.index.DropUser(*space);
}

absl::StatusOr<SnapshotDraft> SnapshotStore::BeginPart(SessionKey session, const SnapshotRecord& record,
                                                       std::int64_t layer) {
  StoreState& state = *state_;
  if (absl::Status status = CheckSnapshotKey("key", record.key); !status.ok()) return status;
  if (layer < 0 || layer >= record.space.layers) {
    return InvalidField("layer",
                        absl::StrCat("is ", layer, "; the snapshot has ", Counted(record.space.layers, "layer")));
  }
  if (state.levels.empty()) return NoSpace(record.position, "the server keeps no snapshots");

  std::shared_ptr<PendingSnapshot> pending;
  {
    Aftermath aftermath(state);
    const std::lock_guard lock(state.mutex);
    if (SpaceIndex* const space = state.index.FindSpace(record.space); space != nullptr) {
      pending = state.pending.Find(session, *space, record.key);
      if (SnapshotEntry* const entry = SnapshotIndex::Find(*space, HashedKey(record.key)); entry != nullptr) {
        if (pending != nullptr) state.EndPendingLocked(*pending);
        return Present(state, *entry);
      }
    }
    if (const absl::Status fits = state.CheckFits(0, record.space); !fits.ok()) {
      return NoSpace(record.position, fits.message());
    }
    if (pending != nullptr && !pending->failure.empty()) {
      if (pending->position == record.position && pending->begun.insert(layer).second) {
        return NoSpace(record.position, pending->failure);
      }
      // The layers come anew.
      state.EndPendingLocked(*pending);
      pending = nullptr;
    }
    if (pending != nullptr && pending->position != record.position) {
      return absl::FailedPreconditionError(absl::StrCat("the key's other layers are at position ", pending->position,
                                                        "; layer ", layer, " is at ", record.position));
    }
    if (pending == nullptr) {
      pending = std::make_shared<PendingSnapshot>();
      pending->session = session;
      pending->space = state.index.AddUser(record.space);
      pending->key = record.key;
      pending->position = record.position;
      pending->last_part = state.clock.Now();
      if (const absl::Status room = state.CheckUnfinishedLocked(pending->space->tenant); !room.ok()) {
        state.index.DropUser(*pending->space);
        return NoSpace(record.position, room.message());
      }
      absl::Status charged = state.TakeUnfinishedRoomLocked(*pending);
      if (charged.ok()) {
        charged = state.ChargeLocked(pending->space->tenant, record.space.snapshot_bytes(), aftermath);
      }
      if (!charged.ok()) {
        pending->GiveBackRoom();
        pending->failure = std::string(charged.message());
      }
      state.pending.Add(pending);
      state.move_work.notify_one();  // the thread that ends it
    }
    pending->begun.insert(layer);
    if (!pending->failure.empty()) return NoSpace(record.position, pending->failure);
    ++pending->open_drafts;
  }

  auto draft = std::make_unique<SnapshotDraft::Memory>(state, pending, layer, 0);
  absl::StatusOr<SnapshotMemory> memory = state.Allocate(0, record.space, 1);
  if (!memory.ok()) {
    const std::lock_guard lock(state.mutex);
    state.FailPendingLocked(*pending, memory.status().message());
    return NoSpace(record.position, memory.status().message());
  }
  draft->memory = *std::move(memory);
  return SnapshotDraft({SnapshotResult::kPending, record.position, ""}, std::move(draft));
}

SnapshotDraft SnapshotStore::BeginWhole(const SnapshotRecord& record, TierKind kind) {
  StoreState& state = *state_;
  if (state.levels.empty()) return NoSpace(record.position, "the server keeps no snapshots");
  std::size_t level = 0;
  for (std::size_t n = 0; n < state.levels.size(); ++n) {
    if (state.levels[n].memory != nullptr && state.levels[n].tier->kind() == kind) level = n;
  }
  auto pending = std::make_shared<PendingSnapshot>();
  pending->key = record.key;
  pending->position = record.position;
  pending->whole = true;
  pending->open_drafts = 1;
  {
    Aftermath aftermath(state);
    const std::lock_guard lock(state.mutex);
    if (SnapshotEntry* const entry = state.index.Find(record.space, record.key); entry != nullptr) {
      return Present(state, *entry);
    }
    if (const absl::Status fits = state.CheckFits(level, record.space); !fits.ok()) {
      return NoSpace(record.position, fits.message());
    }
    pending->space = state.index.AddUser(record.space);
    const absl::Status charged = state.ChargeLocked(pending->space->tenant, record.space.snapshot_bytes(), aftermath);
    if (!charged.ok()) {
      state.index.DropUser(*pending->space);
      return NoSpace(record.position, charged.message());
    }
  }
  auto draft = std::make_unique<SnapshotDraft::Memory>(state, std::move(pending), 0, level);
  absl::StatusOr<SnapshotMemory> memory = state.Allocate(level, record.space, record.space.layers);
  if (!memory.ok()) return NoSpace(record.position, memory.status().message());
  draft->memory = *std::move(memory);
  return SnapshotDraft({SnapshotResult::kPending, record.position, ""}, std::move(draft));
}

SnapshotOutcome SnapshotStore::Commit(SnapshotDraft draft) {
  if (draft.memory_ == nullptr) return draft.outcome_;
  StoreState& state = *state_;
  SnapshotDraft::Memory& written = *draft.memory_;
  const std::shared_ptr<PendingSnapshot> pending = written.pending();
  Aftermath aftermath(state);
  const std::lock_guard lock(state.mutex);
  if (pending->gone) return NoSpace(pending->position, "the session has ended, or the layers took too long");
  if (!pending->failure.empty()) return NoSpace(pending->position, pending->failure);
  const std::shared_ptr<SpaceIndex>& space = pending->space;
  if (SnapshotEntry* const entry = SnapshotIndex::Find(*space, HashedKey(pending->key)); entry != nullptr) {
    const SnapshotOutcome outcome = Present(state, *entry);
    state.EndPendingLocked(*pending);
    return outcome;
  }

  if (!pending->whole) {
    if (pending->parts.try_emplace(written.layer(), std::move(written.memory)).second) {
      state.pending.SetLastPart(*pending, state.clock.Now());
    }
    if (static_cast<std::int64_t>(pending->parts.size()) < space->identity.layers) {
      return {SnapshotResult::kPending, pending->position, ""};
    }
  }
  if (const absl::Status room = state.MakeIndexRoomLocked(aftermath); !room.ok()) {
    state.EndPendingLocked(*pending);
    return NoSpace(pending->position, room.message());
  }
  SnapshotMemory memory;
  if (pending->whole) memory = std::move(written.memory);
  for (auto& [layer, part] : pending->parts) memory.Append(std::move(part));
  pending->parts.clear();
  const std::size_t level = written.level();
  state.PublishLocked(space, pending->key, pending->position, level,
                      state.levels[level].memory->Adopt(std::move(memory)), aftermath);
  // What it was charged for is the snapshot's now.
  pending->gone = true;
  if (!pending->whole) state.pending.Remove(*pending);
  state.index.DropUser(*space);
  return {SnapshotResult::kStored, pending->position, ""};
}

void SnapshotStore::EndSession(SessionKey session) {
  for (bool all = false; !all;) {
    const std::lock_guard lock(state_->mutex);
    all = state_->EndSessionLocked(session);
  }
}

void SnapshotStore::Fetch(const SnapshotSpace& space, absl::string_view key, FetchDone done) {
  StoreState& state = *state_;
  absl::StatusOr<Fetched> result = NoSuchSnapshot();
  {
    Aftermath aftermath(state);
    const std::lock_guard lock(state.mutex);
    if (SnapshotEntry* const entry = state.index.Find(space, key); entry != nullptr) {
      state.UseLocked(*entry);
      std::shared_ptr<const TierCopy> copy = entry->memory_copy();
      if (copy == nullptr) {
        state.LoadLocked(*entry).waiters.push_back(std::move(done));
        return;
      }
      result = Fetched{std::move(copy), entry->position};
    }
  }
  done(std::move(result));
}

std::optional<SnapshotStore::Found> SnapshotStore::Find(const SnapshotSpace& space, absl::string_view key) const {
  const std::lock_guard lock(state_->mutex);
  const SnapshotEntry* const entry = state_->index.Find(space, key);
  if (entry == nullptr) return std::nullopt;
  return Found{entry->position, entry->bytes()};
}

std::optional<SnapshotStore::Lookup> SnapshotStore::LookupPrefix(const SnapshotSpace& space,
                                                                 absl::Span<const absl::string_view> keys,
                                                                 absl::Duration lease) {
  StoreState& state = *state_;
  std::shared_ptr<SpaceIndex> index;
  std::vector<HashedKey> hashed;
  hashed.reserve(std::min(kKeysAtOnce, keys.size()));
  for (std::size_t end = keys.size(); end > 0;) {
    const std::size_t begin = end > kKeysAtOnce ? end - kKeysAtOnce : 0;
    hashed.clear();
    for (std::size_t n = begin; n < end; ++n) hashed.emplace_back(keys[n]);
    const std::lock_guard lock(state.mutex);
    if (index == nullptr) {
      SpaceIndex* const found = state.index.FindSpace(space);
      if (found == nullptr) break;
      index = found->shared_from_this();
    }
    // Most of them are not there: all there is to do is to look at one line of the table each, wherever that is.
    for (const HashedKey& key : hashed) index->entries.prefetch(key);
    for (std::size_t n = end; n > begin; --n) {
      SnapshotEntry* const entry = SnapshotIndex::Find(*index, hashed[n - 1 - begin]);
      if (entry == nullptr) continue;
      ++state.counters.hits;
      state.counters.hit_tokens = SumOrMost(state.counters.hit_tokens, entry->position);
      state.UseLocked(*entry);
      Lookup lookup;
      lookup.index = static_cast<std::int64_t>(n) - 1;
      if (lease > absl::ZeroDuration()) {
        std::string refusal;
        lookup.pin = state.PinLocked(*index, {entry->shared_from_this()},
                                     std::min(lease, state.options.limits.max_pin_ttl), &refusal);
        if (entry->memory_copy() == nullptr) {
          state.LoadLocked(*entry).promote = true;
        } else if (entry->copies[0] == nullptr) {
          state.PromoteLocked(*entry);
        }
      }
      lookup.snapshot = state.SummaryLocked(*entry);
      return lookup;
    }
    end = begin;
  }
  const std::lock_guard lock(state.mutex);
  ++state.counters.misses;
  return std::nullopt;
}

absl::StatusOr<SnapshotStore::Pinned> SnapshotStore::Pin(const SnapshotSpace& space,
                                                         absl::Span<const absl::string_view> keys, absl::Duration ttl) {
  StoreState& state = *state_;
  if (keys.empty()) return InvalidField("keys", "is empty");
  const absl::Duration longest = state.options.limits.max_pin_ttl;
  if (ttl <= absl::ZeroDuration() || ttl > longest) ttl = longest;
  const std::lock_guard lock(state.mutex);
  SpaceIndex* const index = state.index.FindSpace(space);
  std::vector<std::shared_ptr<SnapshotEntry>> entries;
  absl::flat_hash_set<const SnapshotEntry*> named;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    SnapshotEntry* const entry = index == nullptr ? nullptr : SnapshotIndex::Find(*index, HashedKey(keys[n]));
    if (entry == nullptr) return absl::NotFoundError(absl::StrCat("keys[", n, "]: there is no snapshot of this key"));
    if (named.insert(entry).second) entries.push_back(entry->shared_from_this());
  }
  std::string refusal;
  std::string pin = state.PinLocked(*index, std::move(entries), ttl, &refusal);
  if (pin.empty()) return Exhausted(refusal, kRetryAfter);
  return Pinned{std::move(pin), ttl};
}

absl::Status SnapshotStore::Unpin(const SnapshotSpace& space, absl::string_view pin) {
  const std::lock_guard lock(state_->mutex);
  const SpaceIndex* const index = state_->index.FindSpace(space);
  if (index == nullptr || !state_->UnpinLocked(*index, pin)) {
    return absl::NotFoundError("there is no such pin; it may have been released or have expired");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> SnapshotStore::Delete(const SnapshotSpace& space, absl::Span<const absl::string_view> keys,
                                                   bool force) {
  StoreState& state = *state_;
  if (!force) {
    const std::lock_guard lock(state.mutex);
    const SpaceIndex* const index = state.index.FindSpace(space);
    for (std::size_t n = 0; n < keys.size() && index != nullptr; ++n) {
      const SnapshotEntry* const entry = SnapshotIndex::Find(*index, HashedKey(keys[n]));
      if (entry != nullptr && entry->pins > 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("keys[", n, "] is pinned; unpin it, or delete it with force"));
      }
    }
  }
  std::int64_t deleted = 0;
  for (std::size_t begin = 0; begin < keys.size(); begin += kDeletionsAtOnce) {
    Aftermath aftermath(state);
    const std::lock_guard lock(state.mutex);
    for (const absl::string_view key : keys.subspan(begin, kDeletionsAtOnce)) {
      SnapshotEntry* const entry = state.index.Find(space, key);
      if (entry == nullptr || (entry->pins > 0 && !force)) continue;  // pinned since
      state.RemoveLocked(*entry, SnapshotEvent::Type::kDeleted, aftermath);
      ++deleted;
    }
  }
  return deleted;
}

void SnapshotStore::AfterDeletions(absl::AnyInvocable<void(absl::Status)> done) {
  if (!state_->has_disk()) return done(absl::OkStatus());
  const std::lock_guard lock(state_->mutex);
  state_->deletions.push_back(std::move(done));
  state_->write_work.notify_one();
}

std::vector<SnapshotSummary> SnapshotStore::List(const SnapshotSpace& space, absl::string_view after,
                                                 std::int64_t limit) const {
  std::vector<SnapshotSummary> summaries;
  std::string last(after);
  bool more = true;
  while (more && static_cast<std::int64_t>(summaries.size()) < limit) {
    const std::lock_guard lock(state_->mutex);
    const SpaceIndex* const index = state_->index.FindSpace(space);
    if (index == nullptr) break;
    auto next = index->ordered.upper_bound(absl::string_view(last));
    const std::int64_t end =
        std::min<std::int64_t>(limit, static_cast<std::int64_t>(summaries.size()) + kSummariesAtOnce);
    for (; static_cast<std::int64_t>(summaries.size()) < end && next != index->ordered.end(); ++next) {
      summaries.push_back(state_->SummaryLocked(**next));
    }
    more = next != index->ordered.end();
    if (more) last = summaries.back().key;
  }
  return summaries;
}

// Watching.

namespace {

class StoreWatch final : public SnapshotWatch {
 public:
  StoreWatch(StoreState& state, std::shared_ptr<SpaceIndex> space, std::shared_ptr<WatchQueue> queue)
      : state_(state), space_(std::move(space)), queue_(std::move(queue)) {}
  ~StoreWatch() override {
    const std::lock_guard lock(state_.mutex);
    --state_.watches;
    --space_->tenant.watches;
    space_->watches.remove(queue_);
    state_.index.DropUser(*space_);
  }

  absl::StatusOr<std::vector<SnapshotEvent>> Take() override {
    const std::lock_guard lock(state_.mutex);
    return queue_->Take(*space_);
  }

 private:
  StoreState& state_;
  const std::shared_ptr<SpaceIndex> space_;
  const std::shared_ptr<WatchQueue> queue_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SnapshotWatch>> SnapshotStore::Watch(const SnapshotSpace& space, bool existing,
                                                                    absl::AnyInvocable<void()> wake) {
  StoreState& state = *state_;
  const SnapshotLimits& limits = state.options.limits;
  const std::lock_guard lock(state.mutex);
  if (state.watches >= limits.max_watches) {
    return Exhausted(absl::StrCat("the server has ", state.watches, " watchers of snapshots; it may have at most ",
                                  limits.max_watches),
                     kRetryAfter);
  }
  std::shared_ptr<SpaceIndex> index = state.index.AddUser(space);
  if (const std::int64_t watches = index->tenant.watches; watches >= limits.max_tenant_watches) {
    state.index.DropUser(*index);
    return Exhausted(absl::StrCat("the tenant has ", watches, " watchers of snapshots; it may have at most ",
                                  limits.max_tenant_watches),
                     kRetryAfter);
  }
  ++state.watches;
  ++index->tenant.watches;
  auto queue = std::make_shared<WatchQueue>(existing, limits.max_watch_events, std::move(wake));
  index->watches.push_back(queue);
  return std::make_unique<StoreWatch>(state, std::move(index), std::move(queue));
}

// The whole.

std::vector<SnapshotStore::TierUsage> SnapshotStore::tiers() const {
  std::vector<TierUsage> usages;
  const std::lock_guard lock(state_->mutex);
  for (std::size_t level = 0; level < state_->levels.size(); ++level) {
    const Tier& tier = *state_->levels[level].tier;
    usages.push_back({tier.kind(), tier.capacity(), tier.used(), state_->index.copies(level)});
  }
  return usages;
}

SnapshotCounters SnapshotStore::counters() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counters;
}

SnapshotStore::Flushed SnapshotStore::Flush(absl::Duration limit) {
  StoreState& state = *state_;
  const auto deadline = std::chrono::steady_clock::now() +
                        absl::ToChronoMilliseconds(std::clamp(limit, absl::ZeroDuration(), absl::Hours(24)));
  Flushed flushed;
  std::unique_lock lock(state.mutex);
  if (!state.has_disk()) return flushed;
  const std::vector<std::shared_ptr<SnapshotEntry>> entries = state.index.NotInLastLevel();
  state.writes.assign(entries.begin(), entries.end());
  state.write_work.notify_one();
  state.idle.wait_until(lock, deadline, [&] { return state.writes.empty() && !state.writing; });
  if (state.options.write_policy == WritePolicy::kWriteBack) state.writes.clear();
  for (const std::shared_ptr<SnapshotEntry>& entry : entries) {
    if (!entry->removed) ++(entry->copies[state.last()] != nullptr ? flushed.written : flushed.left);
  }
  return flushed;
}

void SnapshotStore::Expire() {
  for (bool all = false; !all;) {
    const std::lock_guard lock(state_->mutex);
    all = state_->ExpireLocked();
  }
}

void SnapshotStore::WaitUntilIdle() {
  std::unique_lock lock(state_->mutex);
  if (movers_ != nullptr) state_->idle.wait(lock, [this] { return movers_->IdleLocked(); });
}

}  // namespace gdpcache::cache
