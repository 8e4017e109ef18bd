#ifndef GDPCACHE_TESTS_SUPPORT_FAULT_INJECTING_TIER_H_
#define GDPCACHE_TESTS_SUPPORT_FAULT_INJECTING_TIER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/tier.h"

namespace gdpcache::test {

/// A disk tier without a disk, whose operations can be told to fail or be held up. Thread-safe; its copies may outlive
/// it.
class FaultInjectingTier final : public cache::Tier {
 public:
  enum class Operation : std::uint8_t { kStore, kLoad, kRemove, kSyncRemovals };
  static constexpr std::size_t kOperations = 4;

  /// `backend` must outlive the copies.
  FaultInjectingTier(kernels::Backend& backend, std::int64_t capacity);

  /// The next `passed` calls of the operation pass, the one after fails with `status`; `repeats`: and all that follow.
  /// Removing cannot fail.
  void FailAfter(Operation operation, std::int64_t passed, absl::Status status, bool repeats = false);
  void FailNoMore(Operation operation);

  /// Runs at the start of each call of the operation, on its thread: may block, to hold the call up.
  void BeforeEach(Operation operation, std::function<void()> hook);

  std::int64_t calls(Operation operation) const;
  std::int64_t copies() const;  // stored and not removed

  cache::TierKind kind() const override { return cache::TierKind::kDisk; }
  std::int64_t capacity() const override { return capacity_; }
  std::int64_t used() const override;
  absl::StatusOr<std::shared_ptr<cache::TierCopy>> Store(const cache::SnapshotRecord& record,
                                                         absl::Span<const cache::SnapshotPart> source,
                                                         kernels::Stream& stream) override;
  absl::Status SyncRemovals() override { return shared_->Enter(Operation::kSyncRemovals); }

 private:
  class Copy;
  struct Plan {
    std::int64_t passes = -1;  // -1: never fails
    bool repeats = false;
    absl::Status failure;
    std::function<void()> hook;
    std::int64_t calls = 0;
  };
  struct Shared {
    absl::Status Enter(Operation operation);

    mutable std::mutex mutex;
    std::array<Plan, kOperations> plans;
    std::int64_t used = 0;
    std::int64_t copies = 0;
  };

  kernels::Backend& backend_;
  const std::int64_t capacity_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_FAULT_INJECTING_TIER_H_
