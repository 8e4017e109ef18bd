#ifndef GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_SNAPSHOT_WORLD_H_
#define GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_SNAPSHOT_WORLD_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/fault_injecting_tier.h"
#include "tests/support/heap_backend.h"
#include "tests/support/manual_clock.h"
#include "tests/support/separate_memory_backend.h"

namespace gdpcache::cache {

/// A space of 2 layers of states [2, 4, 8], 256 bytes each, with 256 auxiliary bytes: no memory is lost to alignment.
SnapshotSpace TestSpace(std::string tenant = "tenant");
/// What one snapshot of it takes: 2 * (256 + 256).
inline constexpr std::int64_t kSnapshotBytes = 1'024;
/// A key of 16 bytes for each number, in the numbers' order.
std::string Key(std::int64_t number);

/// A store on a heap whose device memory the host cannot touch, with tiers of so many snapshots.
class SnapshotWorld {
 public:
  struct Setup {
    std::int64_t device = 0;  // snapshots; 0: no such tier
    std::int64_t host = 0;
    std::int64_t disk = 0;
    double high = 1;  // watermarks, as shares of each tier
    double low = 1;
    SnapshotOptions options = DefaultOptions();
  };
  static SnapshotOptions DefaultOptions();
  /// These, but that the store writes through.
  static SnapshotOptions WriteThrough();

  explicit SnapshotWorld(Setup setup);

  /// The content of a snapshot follows from `seed`.
  void Fill(absl::Span<const SnapshotPart> parts, std::int64_t seed, std::int64_t first_layer = 0);
  /// Whether `parts` are all layers of that snapshot.
  bool Holds(absl::Span<const SnapshotPart> parts, std::int64_t seed);

  /// All layers at once, with the key's number as seed.
  SnapshotOutcome Store(std::int64_t number, std::int64_t position = 64, const SnapshotSpace& space = TestSpace(),
                        TierKind kind = TierKind::kDevice);
  /// Numbers `first` to `last`, a second apart; the background finishes after each.
  void StoreMany(std::int64_t first, std::int64_t last, const SnapshotSpace& space = TestSpace());
  /// Layer by layer; the outcome of the last one.
  SnapshotOutcome StoreParts(SessionKey session, std::int64_t number, std::int64_t position = 64,
                             const SnapshotSpace& space = TestSpace());
  /// One layer.
  absl::StatusOr<SnapshotOutcome> StorePart(SessionKey session, std::int64_t number, std::int64_t position,
                                            std::int64_t layer, const SnapshotSpace& space = TestSpace());
  bool Has(std::int64_t number, const SnapshotSpace& space = TestSpace());
  /// The numbers that there are, of 0 .. `end` - 1.
  std::vector<std::int64_t> Numbers(std::int64_t end, const SnapshotSpace& space = TestSpace());
  /// Waits for it.
  absl::StatusOr<std::shared_ptr<const TierCopy>> Fetch(std::int64_t number, const SnapshotSpace& space = TestSpace());
  void ExpectIntact(std::int64_t number, const SnapshotSpace& space = TestSpace());
  std::vector<TierKind> Tiers(std::int64_t number, const SnapshotSpace& space = TestSpace());
  std::optional<SnapshotStore::Lookup> Lookup(const std::vector<std::int64_t>& numbers,
                                              absl::Duration lease = absl::ZeroDuration(),
                                              const SnapshotSpace& space = TestSpace());
  absl::StatusOr<SnapshotStore::Pinned> Pin(const std::vector<std::int64_t>& numbers, absl::Duration ttl,
                                            const SnapshotSpace& space = TestSpace());
  absl::StatusOr<std::int64_t> Delete(const std::vector<std::int64_t>& numbers, bool force = false,
                                      const SnapshotSpace& space = TestSpace());
  std::int64_t used(TierKind kind);
  std::vector<std::string> log();

  test::HeapBackend heap;
  test::SeparateMemoryBackend separate{heap};
  test::FaultInjectingBackend backend{separate};
  test::ManualClock clock;
  test::FaultInjectingTier* disk = nullptr;  // the store's

 private:
  std::unique_ptr<kernels::Stream> stream_;
  std::mutex mutex_;  // guards stream_ and log_
  std::vector<std::string> log_;

 public:
  std::unique_ptr<SnapshotStore> store;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_SNAPSHOT_WORLD_H_
