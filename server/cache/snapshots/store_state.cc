#include "server/cache/snapshots/store_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/cache/session_id.h"

namespace gdpcache::cache {
namespace {

constexpr std::size_t kMaxPromotions = 1'024;  // that wait; others come closer at their next use
constexpr std::int64_t kUsesToPromote = 2;
constexpr std::size_t kEndedAtOnce = 256;  // unfinished snapshots

}  // namespace

Aftermath::~Aftermath() {
  for (const std::string& line : lines_) {
    if (state_.options.log) state_.options.log(line);
  }
  for (const std::shared_ptr<WatchQueue>& watch : watches_) watch->Wake();
  for (auto& [waiters, result] : finished_) {
    for (SnapshotStore::FetchDone& done : waiters) done(result);
  }
}

StoreState::StoreState(kernels::Backend& the_backend, const Clock& the_clock, std::vector<StoreTier> tiers,
                       SnapshotOptions the_options)
    : backend(the_backend), clock(the_clock), options(std::move(the_options)), index(tiers.size()) {
  levels.reserve(tiers.size());
  for (StoreTier& tier : tiers) {
    StoreLevel& level = levels.emplace_back();
    level.memory = tier.tier->memory();
    level.tier = std::move(tier.tier);
    level.high_watermark = tier.high_watermark;
    level.low_watermark = tier.low_watermark;
  }
}

StoreState::~StoreState() = default;

absl::Status StoreState::CheckFits(std::size_t level, const SnapshotSpace& space) const {
  const StoreLevel& place = levels[level];
  const std::int64_t bytes =
      place.memory == nullptr ? space.snapshot_bytes() : MemoryTier::Footprint(space, space.layers);
  if (bytes <= place.tier->capacity()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the ", Name(place.tier->kind()), " tier: a snapshot takes ", bytes,
                                                   " bytes; all of the tier are ", place.tier->capacity()));
}

absl::StatusOr<SnapshotMemory> StoreState::Allocate(std::size_t level, const SnapshotSpace& space, std::int64_t count) {
  MemoryTier& tier = *levels[level].memory;
  while (true) {
    absl::StatusOr<SnapshotMemory> memory = tier.Allocate(space, count);
    Aftermath aftermath(*this);
    const std::lock_guard lock(mutex);
    if (memory.ok()) {
      CheckWatermarkLocked(level);
      return memory;
    }
    if (!absl::IsResourceExhausted(memory.status()) || MemoryTier::Footprint(space, count) > tier.capacity()) {
      return memory;
    }
    SnapshotEntry* const victim = index.FirstDroppable(level);
    if (victim == nullptr) {
      WantRoomLocked(level);
      return memory;
    }
    DropCopyLocked(*victim, level, aftermath);
  }
}

absl::Status StoreState::ChargeLocked(TenantAccount& tenant, std::int64_t bytes, Aftermath& aftermath) {
  const std::int64_t quota = options.limits.tenant_bytes;
  if (quota > 0) {
    while (bytes > quota - tenant.bytes) {
      SnapshotEntry* const victim = bytes > quota ? nullptr : SnapshotIndex::FirstEvictable(tenant);
      if (victim == nullptr) {
        return absl::ResourceExhaustedError(absl::StrCat("the tenant's quota: ", bytes, " bytes are needed; ",
                                                         tenant.bytes, " of ", quota, " are in use"));
      }
      RemoveLocked(*victim, SnapshotEvent::Type::kEvicted, aftermath);
    }
  }
  tenant.bytes += bytes;
  return absl::OkStatus();
}

absl::Status StoreState::CheckUnfinishedLocked(const TenantAccount& tenant) const {
  const SnapshotLimits& limits = options.limits;
  if (pending.size() >= limits.max_pending) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the server has ", pending.size(), " unfinished snapshots; it may have at most ", limits.max_pending));
  }
  if (const std::int64_t most = limits.tenant_share.Of(limits.max_pending); tenant.unfinished >= most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the tenant has ", tenant.unfinished, " unfinished snapshots; it may have at most ", most));
  }
  return absl::OkStatus();
}

absl::Status StoreState::TakeUnfinishedRoomLocked(PendingSnapshot& unfinished) {
  if (options.limits.tenant_share.is_all()) return absl::OkStatus();  // the tier's room is all that counts
  TenantAccount& tenant = unfinished.space->tenant;
  const SnapshotSpace& space = unfinished.space->identity;
  const std::int64_t bytes = MemoryTier::Footprint(space, space.layers);
  const std::int64_t most = options.limits.tenant_share.Of(levels[0].tier->capacity());
  if (tenant.unfinished_bytes > 0 && bytes > most - tenant.unfinished_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the ", Name(levels[0].tier->kind()), " tier: a snapshot takes ",
                                                     bytes, " bytes; unfinished ones of the tenant take ",
                                                     tenant.unfinished_bytes, " of the ", most,
                                                     " bytes that they may"));
  }
  unfinished.room = bytes;
  tenant.unfinished_bytes += bytes;
  return absl::OkStatus();
}

absl::Status StoreState::MakeIndexRoomLocked(Aftermath& aftermath) {
  if (index.size() < options.limits.max_snapshots) return absl::OkStatus();
  SnapshotEntry* const victim = index.FirstEvictable();
  if (victim == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the server has ", index.size(),
                                                     " snapshots, all in use or pinned; it may have at most ",
                                                     options.limits.max_snapshots));
  }
  RemoveLocked(*victim, SnapshotEvent::Type::kEvicted, aftermath);
  return absl::OkStatus();
}

void StoreState::PublishLocked(const std::shared_ptr<SpaceIndex>& space, absl::string_view key, std::int64_t position,
                               std::size_t level, std::shared_ptr<TierCopy> copy, Aftermath& aftermath) {
  const std::shared_ptr<SnapshotEntry> entry = index.Add(space, key, position, clock.Now(), level, std::move(copy));
  ++counters.stored;
  EmitLocked(*space, {SnapshotEvent::Type::kStored, entry->key, position}, aftermath);
  if (has_disk() && options.write_policy == WritePolicy::kWriteThrough) QueueWriteLocked(entry);
  CheckWatermarkLocked(level);
}

void StoreState::QueueWriteLocked(const std::shared_ptr<SnapshotEntry>& entry) {
  // Those that have been deleted since do not add up.
  if (static_cast<std::int64_t>(writes.size()) > 2 * index.size() + 64) {
    std::erase_if(writes, [](const auto& waiting) { return waiting->removed; });
  }
  writes.push_back(entry);
  write_work.notify_one();
}

void StoreState::EmitLocked(SpaceIndex& space, const SnapshotEvent& event, Aftermath& aftermath) {
  for (const std::shared_ptr<WatchQueue>& watch : space.watches) {
    if (watch->Add(event)) aftermath.Wake(watch);
  }
}

void StoreState::RemoveLocked(SnapshotEntry& entry, SnapshotEvent::Type type, Aftermath& aftermath) {
  const std::shared_ptr<SnapshotEntry> keep = entry.shared_from_this();
  ++(type == SnapshotEvent::Type::kDeleted ? counters.deleted : counters.evicted);
  EmitLocked(*entry.space, {type, entry.key, entry.position}, aftermath);
  std::array<std::shared_ptr<TierCopy>, kMaxTiers> copies = index.Remove(entry);
  for (std::size_t level = 0; level < levels.size(); ++level) {
    if (copies[level] != nullptr) DiscardLocked(level, std::move(copies[level]));
  }
}

void StoreState::DropCopyLocked(SnapshotEntry& entry, std::size_t level, Aftermath& aftermath) {
  const bool last = std::none_of(entry.copies.begin(), entry.copies.end(),
                                 [&](const auto& copy) { return copy != nullptr && copy != entry.copies[level]; });
  if (last) {
    RemoveLocked(entry, SnapshotEvent::Type::kEvicted, aftermath);
  } else {
    DiscardLocked(level, index.TakeCopy(entry, level));
  }
}

void StoreState::DiscardLocked(std::size_t level, std::shared_ptr<TierCopy> copy) {
  StoreLevel& place = levels[level];
  place.stuck = false;
  ++place.left;
  if (place.memory == nullptr) {
    removals.push_back(std::move(copy));
    write_work.notify_one();
    return;
  }
  copy.reset();
  if (level > 0 && levels[level - 1].waiting) {
    levels[level - 1].waiting = false;
    NotifyReliefLocked(level - 1);
  }
}

void StoreState::UseLocked(SnapshotEntry& entry) {
  index.Use(entry, clock.Now());
  if (entry.copies[0] != nullptr) return;
  if (++entry.slow_uses >= kUsesToPromote && entry.memory_copy() != nullptr) PromoteLocked(entry);
}

void StoreState::EndPendingLocked(PendingSnapshot& unfinished) {
  FailPendingLocked(unfinished, "it has ended");
  unfinished.gone = true;
  if (!unfinished.whole) pending.Remove(unfinished);
  index.DropUser(*unfinished.space);
}

void StoreState::FailPendingLocked(PendingSnapshot& unfinished, absl::string_view failure) {
  if (!unfinished.failure.empty()) return;
  unfinished.failure = std::string(failure);
  unfinished.space->tenant.bytes -= unfinished.space->identity.snapshot_bytes();
  if (!unfinished.parts.empty()) ++counters.abandoned;
  unfinished.parts.clear();
  unfinished.GiveBackRoom();
}

std::string StoreState::PinLocked(SpaceIndex& space, std::vector<std::shared_ptr<SnapshotEntry>> entries,
                                  absl::Duration ttl, std::string* refusal) {
  const SnapshotLimits& limits = options.limits;
  TenantAccount& tenant = space.tenant;
  std::int64_t bytes = 0;  // that are not pinned yet
  for (const std::shared_ptr<SnapshotEntry>& entry : entries) {
    if (entry->pins == 0) bytes += entry->bytes();
  }
  if (bytes > limits.pinned_bytes - tenant.pinned_bytes) {
    *refusal = absl::StrCat("the tenant's pin budget: ", bytes, " bytes are needed; ", tenant.pinned_bytes, " of ",
                            limits.pinned_bytes, " are in use");
    return "";
  }
  const auto count = static_cast<std::int64_t>(entries.size());
  if (count > limits.max_pins - tenant.pins) {
    *refusal = absl::StrCat("the tenant's pins name ", tenant.pins, " snapshots; with ", count, " more they exceed ",
                            limits.max_pins);
    return "";
  }
  absl::StatusOr<std::string> name = NewSessionId();
  if (!name.ok()) {
    *refusal = std::string(name.status().message());
    return "";
  }
  for (const std::shared_ptr<SnapshotEntry>& entry : entries) index.Pin(*entry);
  const absl::Time expires = clock.Now() + ttl;
  pins.emplace(*name, SnapshotPin{index.AddUser(space.identity), std::move(entries), expires});
  pins_by_expiry.emplace(expires, *name);
  move_work.notify_one();  // the thread that ends it
  return *std::move(name);
}

bool StoreState::UnpinLocked(const SpaceIndex& space, absl::string_view pin) {
  const auto found = pins.find(pin);
  if (found == pins.end() || found->second.space.get() != &space) return false;
  EndPinLocked(found);
  return true;
}

void StoreState::EndPinLocked(absl::flat_hash_map<std::string, SnapshotPin>::iterator pin) {
  for (const std::shared_ptr<SnapshotEntry>& entry : pin->second.entries) index.Unpin(*entry);
  pins_by_expiry.erase({pin->second.expires, pin->first});
  const std::shared_ptr<SpaceIndex> space = std::move(pin->second.space);
  pins.erase(pin);
  index.DropUser(*space);
  for (std::size_t level = 0; level < levels.size(); ++level) CheckWatermarkLocked(level);
}

bool StoreState::EndSessionLocked(SessionKey session) {
  const auto ended = pending.OfSession(session, kEndedAtOnce);
  for (const auto& unfinished : ended) EndPendingLocked(*unfinished);
  return ended.size() < kEndedAtOnce;
}

bool StoreState::ExpireLocked() {
  const absl::Time now = clock.Now();
  while (!pins_by_expiry.empty() && pins_by_expiry.begin()->first <= now) {
    EndPinLocked(pins.find(pins_by_expiry.begin()->second));
  }
  const auto ended = pending.LastPartUntil(now - options.limits.pending_timeout, kEndedAtOnce);
  for (const auto& unfinished : ended) EndPendingLocked(*unfinished);
  return ended.size() < kEndedAtOnce;
}

SnapshotLoad& StoreState::LoadLocked(SnapshotEntry& entry) {
  if (entry.load == nullptr) {
    entry.load = std::make_shared<SnapshotLoad>();
    entry.load->entry = entry.shared_from_this();
    loads.Push(entry.load);
    load_work.notify_one();
  }
  return *entry.load;
}

void StoreState::PromoteLocked(SnapshotEntry& entry) {
  if (entry.promotion_queued || promotions.size() >= kMaxPromotions) return;
  entry.promotion_queued = true;
  promotions.push_back(entry.shared_from_this());
  move_work.notify_one();
}

void StoreState::CheckWatermarkLocked(std::size_t level) {
  StoreLevel& place = levels[level];
  const std::int64_t used = place.tier->used();
  if (used > place.high_watermark) {
    place.over = true;
    place.stuck = false;
  } else if (used <= place.low_watermark) {
    place.over = false;
  }
  if (place.over) NotifyReliefLocked(level);
}

void StoreState::WantRoomLocked(std::size_t level) {
  levels[level].wanted = true;
  levels[level].stuck = false;
  NotifyReliefLocked(level);
}

void StoreState::NotifyReliefLocked(std::size_t level) {
  // Whatever touches the disk is the writer's.
  const bool writes_disk = has_disk() && level + 1 >= last();
  (writes_disk ? write_work : move_work).notify_one();
}

SnapshotSummary StoreState::SummaryLocked(const SnapshotEntry& entry) const {
  SnapshotSummary summary;
  summary.key = entry.key;
  summary.position = entry.position;
  summary.bytes = entry.bytes();
  for (std::size_t level = 0; level < levels.size(); ++level) {
    if (entry.copies[level] != nullptr) summary.tiers.push_back(levels[level].tier->kind());
  }
  summary.pinned = entry.pins > 0;
  summary.stored = entry.stored;
  summary.used = entry.used;
  return summary;
}

}  // namespace gdpcache::cache
