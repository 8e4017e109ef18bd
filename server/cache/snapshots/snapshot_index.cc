#include "server/cache/snapshots/snapshot_index.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace gdpcache::cache {

std::shared_ptr<TierCopy> SnapshotEntry::memory_copy() const {
  for (const std::shared_ptr<TierCopy>& copy : copies) {
    if (copy != nullptr && !copy->parts().empty()) return copy;
  }
  return nullptr;
}

bool SnapshotEntry::InUse() const {
  return writing != 0 || load != nullptr ||
         std::any_of(copies.begin(), copies.end(), [](const auto& copy) { return copy.use_count() > 1; });
}

/// While something changes that the orders depend on, the entry is in none of them.
class SnapshotIndex::Change {
 public:
  Change(SnapshotIndex& index, SnapshotEntry& entry) : index_(index), entry_(entry) { index_.Erase(entry_); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  ~Change() { index_.Insert(entry_); }

 private:
  SnapshotIndex& index_;
  SnapshotEntry& entry_;
};

SnapshotIndex::~SnapshotIndex() {
  // Entries and their spaces hold each other.
  for (const auto& [identity, space] : spaces_) space->entries.clear();
}

UseOrder SnapshotIndex::OrderOf(const SnapshotEntry& entry) {
  return {entry.moment, -entry.position, const_cast<SnapshotEntry*>(&entry)};
}

SnapshotIndex::Place SnapshotIndex::PlaceOf(const SnapshotEntry& entry, std::size_t level) const {
  if (entry.removed || entry.writing != 0 || entry.copies[level] == nullptr) return kNowhere;
  for (std::size_t lower = level + 1; lower < levels_; ++lower) {
    if (entry.copies[lower] != nullptr) return kDroppable;
  }
  if (level + 1 < levels_) return kMovable;
  return entry.pins > 0 ? kNowhere : kDroppable;
}

void SnapshotIndex::Insert(SnapshotEntry& entry) {
  for (std::size_t level = 0; level < levels_; ++level) {
    const Place place = PlaceOf(entry, level);
    if (place != kNowhere) orders_[level].sets[place].insert(OrderOf(entry));
  }
  if (!entry.removed && entry.pins == 0) entry.space->tenant.evictable.insert(OrderOf(entry));
}

void SnapshotIndex::Erase(SnapshotEntry& entry) {
  for (std::size_t level = 0; level < levels_; ++level) {
    const Place place = PlaceOf(entry, level);
    if (place != kNowhere) orders_[level].sets[place].erase(OrderOf(entry));
  }
  if (!entry.removed && entry.pins == 0) entry.space->tenant.evictable.erase(OrderOf(entry));
}

SpaceIndex* SnapshotIndex::FindSpace(const SnapshotSpace& identity) const {
  const auto found = spaces_.find(identity);
  return found == spaces_.end() ? nullptr : found->second.get();
}

std::shared_ptr<SpaceIndex> SnapshotIndex::AddUser(const SnapshotSpace& identity) {
  std::shared_ptr<SpaceIndex>& space = spaces_[identity];
  if (space == nullptr) {
    std::unique_ptr<TenantAccount>& tenant = tenants_[identity.tenant];
    if (tenant == nullptr) tenant = std::make_unique<TenantAccount>();
    ++tenant->spaces;
    space = std::make_shared<SpaceIndex>(identity, *tenant);
  }
  ++space->users;
  return space;
}

void SnapshotIndex::DropUser(SpaceIndex& space) {
  --space.users;
  DropIfUnused(space);
}

void SnapshotIndex::DropIfUnused(SpaceIndex& space) {
  if (space.users > 0 || !space.entries.empty()) return;
  const auto tenant = tenants_.find(space.identity.tenant);
  const auto found = spaces_.find(space.identity);
  if (--tenant->second->spaces == 0) tenants_.erase(tenant);
  spaces_.erase(found);  // `space` may be gone now
}

SnapshotEntry* SnapshotIndex::Find(const SpaceIndex& space, const HashedKey& key) {
  const auto found = space.entries.find(key);
  return found == space.entries.end() ? nullptr : found->entry.get();
}

SnapshotEntry* SnapshotIndex::Find(const SnapshotSpace& identity, absl::string_view key) const {
  const SpaceIndex* const space = FindSpace(identity);
  return space == nullptr ? nullptr : Find(*space, HashedKey(key));
}

std::shared_ptr<SnapshotEntry> SnapshotIndex::Add(const std::shared_ptr<SpaceIndex>& space, absl::string_view key,
                                                  std::int64_t position, absl::Time now, std::size_t level,
                                                  std::shared_ptr<TierCopy> copy, bool recovered) {
  auto entry = std::make_shared<SnapshotEntry>();
  entry->space = space;
  entry->key = std::string(key);
  entry->hash = HashedKey(key).hash;
  entry->position = position;
  entry->stored = now;
  entry->used = now;
  entry->moment = recovered ? std::numeric_limits<std::int64_t>::min() + recovered_++ : absl::ToUnixMillis(now);
  entry->copies[level] = std::move(copy);
  ++orders_[level].copies;
  space->entries.insert({entry->hash, entry});
  space->ordered.insert(entry.get());
  ++size_;
  Insert(*entry);
  return entry;
}

std::array<std::shared_ptr<TierCopy>, kMaxTiers> SnapshotIndex::Remove(SnapshotEntry& entry) {
  assert(!entry.removed);
  const std::shared_ptr<SpaceIndex> space = entry.space;
  Erase(entry);
  entry.removed = true;
  for (std::size_t level = 0; level < levels_; ++level) {
    if (entry.copies[level] != nullptr) --orders_[level].copies;
  }
  std::array<std::shared_ptr<TierCopy>, kMaxTiers> copies;
  copies.swap(entry.copies);
  space->tenant.bytes -= entry.bytes();
  if (entry.pins > 0) space->tenant.pinned_bytes -= entry.bytes();
  --size_;
  space->ordered.erase(&entry);
  space->entries.erase(space->entries.find(HashedKey(entry.key)));  // `entry` may be gone now
  DropIfUnused(*space);
  return copies;
}

void SnapshotIndex::Use(SnapshotEntry& entry, absl::Time now) {
  const Change change(*this, entry);
  entry.used = std::max(entry.used, now);
  entry.moment = absl::ToUnixMillis(entry.used);
}

void SnapshotIndex::SetCopy(SnapshotEntry& entry, std::size_t level, std::shared_ptr<TierCopy> copy) {
  assert(entry.copies[level] == nullptr && copy != nullptr && !entry.removed);
  const Change change(*this, entry);
  entry.copies[level] = std::move(copy);
  ++orders_[level].copies;
}

std::shared_ptr<TierCopy> SnapshotIndex::TakeCopy(SnapshotEntry& entry, std::size_t level) {
  assert(entry.copies[level] != nullptr);
  const Change change(*this, entry);
  --orders_[level].copies;
  return std::exchange(entry.copies[level], nullptr);
}

void SnapshotIndex::SetWriting(SnapshotEntry& entry, std::size_t level, bool writing) {
  const Change change(*this, entry);
  const auto bit = static_cast<std::uint8_t>(1U << level);
  entry.writing = static_cast<std::uint8_t>(writing ? entry.writing | bit : entry.writing & ~bit);
}

void SnapshotIndex::Pin(SnapshotEntry& entry) {
  const Change change(*this, entry);
  TenantAccount& tenant = entry.space->tenant;
  ++tenant.pins;
  if (entry.pins++ == 0) tenant.pinned_bytes += entry.bytes();
}

void SnapshotIndex::Unpin(SnapshotEntry& entry) {
  assert(entry.pins > 0);
  const Change change(*this, entry);
  TenantAccount& tenant = entry.space->tenant;
  --tenant.pins;
  // What has been removed was given back then.
  if (--entry.pins == 0 && !entry.removed) tenant.pinned_bytes -= entry.bytes();
}

SnapshotEntry* SnapshotIndex::FirstDroppable(std::size_t level) const {
  for (const UseOrder& order : orders_[level].sets[kDroppable]) {
    if (!order.entry->InUse(level)) return order.entry;
  }
  return nullptr;
}

SnapshotEntry* SnapshotIndex::FirstToLeave(std::size_t level) const {
  SnapshotEntry* const droppable = FirstDroppable(level);
  for (const UseOrder& order : orders_[level].sets[kMovable]) {
    if (order.entry->InUse(level)) continue;
    return droppable != nullptr && OrderOf(*droppable) < order ? droppable : order.entry;
  }
  return droppable;
}

SnapshotEntry* SnapshotIndex::FirstEvictable(const TenantAccount& tenant) {
  for (const UseOrder& order : tenant.evictable) {
    if (!order.entry->InUse()) return order.entry;
  }
  return nullptr;
}

SnapshotEntry* SnapshotIndex::FirstEvictable() const {
  SnapshotEntry* first = nullptr;
  for (const auto& [name, tenant] : tenants_) {
    SnapshotEntry* const candidate = FirstEvictable(*tenant);
    if (candidate != nullptr && (first == nullptr || OrderOf(*candidate) < OrderOf(*first))) first = candidate;
  }
  return first;
}

std::vector<std::shared_ptr<SnapshotEntry>> SnapshotIndex::NotInLastLevel() const {
  std::vector<std::pair<UseOrder, std::shared_ptr<SnapshotEntry>>> ordered;
  for (const auto& [identity, space] : spaces_) {
    for (const SpaceIndex::Item& item : space->entries) {
      if (item.entry->copies[levels_ - 1] == nullptr) ordered.emplace_back(OrderOf(*item.entry), item.entry);
    }
  }
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) { return b.first < a.first; });
  std::vector<std::shared_ptr<SnapshotEntry>> entries;
  entries.reserve(ordered.size());
  for (auto& [order, entry] : ordered) entries.push_back(std::move(entry));
  return entries;
}

}  // namespace gdpcache::cache
