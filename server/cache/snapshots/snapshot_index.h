#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_INDEX_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_INDEX_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/snapshots/snapshot.h"
#include "server/cache/snapshots/tier.h"

namespace gdpcache::cache {

class WatchQueue;
struct SnapshotEntry;
struct SnapshotLoad;

/// The order in which snapshots give way, first to last: least recently used; of those used in the same millisecond the
/// longer one.
struct UseOrder {
  std::int64_t moment = 0;  // a time in milliseconds; before all times, where those of an earlier run stand among them
  std::int64_t negated_position = 0;
  SnapshotEntry* entry = nullptr;
  auto operator<=>(const UseOrder&) const = default;
};
using UseSet = absl::btree_set<UseOrder>;

/// A key with its hash, which is worth computing before the lock is taken.
struct HashedKey {
  explicit HashedKey(absl::string_view the_key) : key(the_key), hash(absl::Hash<absl::string_view>{}(the_key)) {}
  absl::string_view key;
  std::size_t hash;
};

struct TenantAccount {
  std::int64_t bytes = 0;         // of its snapshots and of those it is putting together
  std::int64_t pinned_bytes = 0;  // of its pinned snapshots
  std::int64_t pins = 0;          // snapshots that its pins name
  std::int64_t watches = 0;
  std::int64_t unfinished = 0;        // snapshots that it is putting together, part by part
  std::int64_t unfinished_bytes = 0;  // what they will take of the first tier
  std::int64_t spaces = 0;
  UseSet evictable;  // its snapshots that are not pinned
};

/// The snapshots of one space.
struct SpaceIndex : std::enable_shared_from_this<SpaceIndex> {
  SpaceIndex(SnapshotSpace the_identity, TenantAccount& the_tenant)
      : identity(std::move(the_identity)), tenant(the_tenant) {}
  SpaceIndex(const SpaceIndex&) = delete;
  SpaceIndex& operator=(const SpaceIndex&) = delete;

  struct Item {
    std::size_t hash = 0;
    std::shared_ptr<SnapshotEntry> entry;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const Item& item) const { return item.hash; }
    std::size_t operator()(const HashedKey& key) const { return key.hash; }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const Item& a, const Item& b) const { return a.entry == b.entry; }
    bool operator()(const Item& item, const HashedKey& key) const;
    bool operator()(const HashedKey& key, const Item& item) const { return (*this)(item, key); }
  };
  struct ByKey {
    using is_transparent = void;
    static absl::string_view KeyOf(const SnapshotEntry* entry);
    static absl::string_view KeyOf(absl::string_view key) { return key; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return KeyOf(a) < KeyOf(b);
    }
  };

  const SnapshotSpace identity;
  TenantAccount& tenant;
  absl::flat_hash_set<Item, Hash, Equal> entries;
  absl::btree_set<SnapshotEntry*, ByKey> ordered;
  std::list<std::shared_ptr<WatchQueue>> watches;
  std::int64_t users = 0;  // drafts, pins and watches: it is there without entries as long as it has any
};

/// A snapshot that can be found, or one that has just been removed and that somebody still works on.
struct SnapshotEntry : std::enable_shared_from_this<SnapshotEntry> {
  std::shared_ptr<SpaceIndex> space;
  std::string key;
  std::size_t hash = 0;
  std::int64_t position = 0;
  absl::Time stored;
  absl::Time used;
  std::int64_t moment = 0;                                  // see UseOrder
  std::array<std::shared_ptr<TierCopy>, kMaxTiers> copies;  // by level
  std::uint8_t writing = 0;                                 // one bit for each level that a copy is being made for
  std::int64_t pins = 0;                                    // pins and leases that name it
  std::int64_t slow_uses = 0;                               // uses since it last had a copy in the first tier
  bool promotion_queued = false;
  bool removed = false;
  std::shared_ptr<SnapshotLoad> load;  // one that has not ended

  std::int64_t bytes() const { return space->identity.snapshot_bytes(); }
  SnapshotRecord record() const { return {space->identity, key, position}; }
  /// The fastest copy with parts(), or nullptr.
  std::shared_ptr<TierCopy> memory_copy() const;
  /// Somebody besides the index holds this copy.
  bool InUse(std::size_t level) const { return copies[level].use_count() > 1; }
  bool InUse() const;
};

inline bool SpaceIndex::Equal::operator()(const Item& item, const HashedKey& key) const {
  return item.hash == key.hash && item.entry->key == key.key;
}
inline absl::string_view SpaceIndex::ByKey::KeyOf(const SnapshotEntry* entry) { return entry->key; }

/// Which snapshots there are, where their copies lie, whose they are and who gives way first. Not thread-safe. Levels
/// count the tiers, fastest first.
class SnapshotIndex {
 public:
  explicit SnapshotIndex(std::size_t levels) : levels_(levels) {}
  SnapshotIndex(const SnapshotIndex&) = delete;
  SnapshotIndex& operator=(const SnapshotIndex&) = delete;
  ~SnapshotIndex();

  std::size_t levels() const { return levels_; }
  std::int64_t size() const { return size_; }
  std::int64_t copies(std::size_t level) const { return orders_[level].copies; }

  /// nullptr when it has no snapshot and no user.
  SpaceIndex* FindSpace(const SnapshotSpace& identity) const;
  /// Counts as a user until DropUser.
  std::shared_ptr<SpaceIndex> AddUser(const SnapshotSpace& identity);
  void DropUser(SpaceIndex& space);

  static SnapshotEntry* Find(const SpaceIndex& space, const HashedKey& key);
  SnapshotEntry* Find(const SnapshotSpace& identity, absl::string_view key) const;

  /// Must not be there yet. Its bytes have been charged to the tenant already. `recovered`: from an earlier run, where
  /// it was used after those added before it.
  std::shared_ptr<SnapshotEntry> Add(const std::shared_ptr<SpaceIndex>& space, absl::string_view key,
                                     std::int64_t position, absl::Time now, std::size_t level,
                                     std::shared_ptr<TierCopy> copy, bool recovered = false);
  /// It cannot be found any more; its bytes are given back to the tenant. Returns its copies, by level.
  std::array<std::shared_ptr<TierCopy>, kMaxTiers> Remove(SnapshotEntry& entry);

  void Use(SnapshotEntry& entry, absl::Time now);
  void SetCopy(SnapshotEntry& entry, std::size_t level, std::shared_ptr<TierCopy> copy);
  std::shared_ptr<TierCopy> TakeCopy(SnapshotEntry& entry, std::size_t level);
  /// A copy is, or is no longer, being made for the level: until then no copy of the entry gives way.
  void SetWriting(SnapshotEntry& entry, std::size_t level, bool writing);
  void Pin(SnapshotEntry& entry);
  void Unpin(SnapshotEntry& entry);

  /// The first copy of the level to give way that nobody uses and that is no loss, because there is another one in a
  /// lower tier or because there is no lower tier; nullptr: none. Never the last copy of what is pinned.
  SnapshotEntry* FirstDroppable(std::size_t level) const;
  /// The first to give way that nobody uses, also if it has to be copied down before.
  SnapshotEntry* FirstToLeave(std::size_t level) const;
  /// Whether `a` gives way before `b`.
  static bool Before(const SnapshotEntry& a, const SnapshotEntry& b) { return OrderOf(a) < OrderOf(b); }
  bool Droppable(const SnapshotEntry& entry, std::size_t level) const { return PlaceOf(entry, level) == kDroppable; }
  /// The tenant's first snapshot to give way altogether; nullptr: none.
  static SnapshotEntry* FirstEvictable(const TenantAccount& tenant);
  /// The same, whoever's it is.
  SnapshotEntry* FirstEvictable() const;

  /// Snapshots without a copy in the last tier, most recently used first.
  std::vector<std::shared_ptr<SnapshotEntry>> NotInLastLevel() const;

 private:
  enum Place : std::uint8_t { kNowhere, kMovable, kDroppable };
  struct Orders {
    std::array<UseSet, 3> sets;  // by Place; kNowhere's stays empty
    std::int64_t copies = 0;
  };
  class Change;

  static UseOrder OrderOf(const SnapshotEntry& entry);
  Place PlaceOf(const SnapshotEntry& entry, std::size_t level) const;
  void Insert(SnapshotEntry& entry);
  void Erase(SnapshotEntry& entry);
  void DropIfUnused(SpaceIndex& space);

  const std::size_t levels_;
  std::int64_t size_ = 0;
  std::int64_t recovered_ = 0;
  absl::flat_hash_map<std::string, std::unique_ptr<TenantAccount>> tenants_;
  absl::flat_hash_map<SnapshotSpace, std::shared_ptr<SpaceIndex>> spaces_;
  std::array<Orders, kMaxTiers> orders_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_INDEX_H_
