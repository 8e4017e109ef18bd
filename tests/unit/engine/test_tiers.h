#ifndef GDPCACHE_TESTS_UNIT_ENGINE_TEST_TIERS_H_
#define GDPCACHE_TESTS_UNIT_ENGINE_TEST_TIERS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/cache/snapshots/tier.h"
#include "tests/unit/engine/engine_world.h"

namespace gdpcache::engine {

/// A tier whose copies have to be loaded, kept in ordinary memory. Thread-safe.
class SlowTier final : public cache::Tier {
 public:
  /// `before_load` runs on the loading thread, which it may hold up; the load ends with its error.
  explicit SlowTier(kernels::Backend& backend, std::function<absl::Status()> before_load = absl::OkStatus)
      : backend_(backend), before_load_(std::move(before_load)) {}

  cache::TierKind kind() const override { return cache::TierKind::kDisk; }
  std::int64_t capacity() const override { return std::int64_t{1} << 40; }
  std::int64_t used() const override { return *used_; }
  absl::StatusOr<std::shared_ptr<cache::TierCopy>> Store(const cache::SnapshotRecord& record,
                                                         absl::Span<const cache::SnapshotPart> source,
                                                         kernels::Stream& stream) override;

 private:
  kernels::Backend& backend_;
  const std::function<absl::Status()> before_load_;
  const std::shared_ptr<std::atomic<std::int64_t>> used_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

/// All tiers down to `kind`, from each of which everything moves into the next at once.
Tiers TiersDownTo(cache::TierKind kind, std::function<absl::Status()> before_load = absl::OkStatus);

/// Waits until the world's snapshots, of which the session's slot 0 becomes some more, are in that tier and in none
/// above it.
void WaitUntilAllIn(const World& world, const std::shared_ptr<cache::Session>& session, cache::TierKind kind);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_TESTS_UNIT_ENGINE_TEST_TIERS_H_
