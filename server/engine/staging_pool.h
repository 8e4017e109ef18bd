#ifndef GDPCACHE_SERVER_ENGINE_STAGING_POOL_H_
#define GDPCACHE_SERVER_ENGINE_STAGING_POOL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/cache/memory_budget.h"
#include "server/cache/task_thread.h"

namespace gdpcache::engine {

class StagingPool;

/// What one call takes from the staging budget: at least what it reserved when it was admitted (so an admitted call
/// does not run dry half-way), more while it uses more. Lives as long as the call or any of its buffers. Thread-safe.
class StagingAccount : public std::enable_shared_from_this<StagingAccount> {
 public:
  class Buffer;

  StagingAccount(const StagingAccount&) = delete;
  StagingAccount& operator=(const StagingAccount&) = delete;
  ~StagingAccount();

  /// `size` bytes of the pool's memory, at least 64-byte aligned, content undefined. RESOURCE_EXHAUSTED, worth a retry,
  /// when they exceed both what is left of the reservation and what is left of the budget, or all that the backend has.
  absl::StatusOr<Buffer> Acquire(std::int64_t size);

  /// Gives back what is reserved and not in use. For the end of a call whose results are still on their way out.
  void EndReservation();

 private:
  friend class StagingPool;
  StagingAccount(StagingPool& pool, std::shared_ptr<cache::MemoryBudget> share, std::int64_t reserved)
      : pool_(pool), share_(std::move(share)), reserved_(reserved) {}
  std::int64_t ChargeLocked() const { return std::max(reserved_, in_use_); }
  void Return(kernels::Buffer block);

  StagingPool& pool_;
  const std::shared_ptr<cache::MemoryBudget> share_;  // what its tenant may use; nullptr: all there is
  std::int64_t reserved_;                             // guarded by pool_.mutex_, as is in_use_
  std::int64_t in_use_ = 0;
};

/// Memory of a call; returns to the pool when destroyed. Movable.
class StagingAccount::Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { Reset(); }

  std::byte* data() const { return block_.bytes(); }
  std::int64_t size() const { return size_; }
  void Reset();

 private:
  friend class StagingAccount;
  Buffer(std::shared_ptr<StagingAccount> account, kernels::Buffer block, std::int64_t size)
      : account_(std::move(account)), block_(std::move(block)), size_(size) {}

  std::shared_ptr<StagingAccount> account_;
  kernels::Buffer block_;  // a whole size class
  std::int64_t size_ = 0;
};

using StagingBuffer = StagingAccount::Buffer;

/// The host or device memory that inputs and results of calls pass through, bounded by one budget for the whole server.
/// Freed blocks are kept for the next call, so that streaming does not pay for fresh pages at every segment: up to
/// kRetainedBusy bytes while any call uses the pool and up to kRetainedIdle when none does. Kept blocks count against
/// the budget but give way to whoever needs it. What is too much is given back to the backend by a thread that may wait
/// for that, not by whoever frees the last block. Thread-safe. Every account must be gone before the pool.
class StagingPool {
 public:
  static constexpr std::int64_t kRetainedBusy = std::int64_t{128} << 20;
  static constexpr std::int64_t kRetainedIdle = std::int64_t{32} << 20;

  /// `thread` must outlive the pool; nullptr: whoever frees a block gives back what is too much.
  StagingPool(kernels::Backend& backend, kernels::MemoryKind kind, std::int64_t budget,
              cache::TaskThread* thread = nullptr)
      : backend_(backend), kind_(kind), budget_(budget), thread_(thread) {}
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;
  ~StagingPool() {
    if (thread_ != nullptr) thread_->Finish();
  }

  /// Admits a call that will use `reserve` bytes, of those that its tenant may use (`share`; nullptr: of all).
  /// RESOURCE_EXHAUSTED names need, budget and use; worth a retry unless the call exceeds the whole budget, or share.
  absl::StatusOr<std::shared_ptr<StagingAccount>> Open(std::int64_t reserve,
                                                       std::shared_ptr<cache::MemoryBudget> share = nullptr);

  std::int64_t budget() const { return budget_; }
  /// Bytes reserved or in buffers; 0 when no call is in flight and no result is on its way out.
  std::int64_t used() const;
  /// Bytes of freed blocks kept for reuse.
  std::int64_t retained() const;

  /// What a buffer of `size` bytes takes from the budget: blocks come in powers of two and three steps between, large
  /// ones in whole pages.
  static std::int64_t BlockSize(std::int64_t size);

 private:
  friend class StagingAccount;

  /// Frees kept blocks, largest first, until at most `level` bytes are kept and no block that is too large for that;
  /// `dropped` takes them for destruction without the lock.
  void TrimLocked(std::int64_t level, std::vector<kernels::Buffer>& dropped);
  bool HasTooMuchLocked(std::int64_t level) const;
  /// How much may be kept.
  std::int64_t LevelLocked() const { return std::min(used_ == 0 ? kRetainedIdle : kRetainedBusy, budget_ - used_); }
  /// Has what is kept beyond that freed.
  void ShrinkLocked(std::vector<kernels::Buffer>& dropped);
  void Shrink();
  absl::Status ChargeLocked(std::int64_t bytes, cache::MemoryBudget* share);
  void ReturnChargeLocked(std::int64_t bytes, cache::MemoryBudget* share, std::vector<kernels::Buffer>& dropped);

  kernels::Backend& backend_;
  const kernels::MemoryKind kind_;
  const std::int64_t budget_;
  cache::TaskThread* const thread_;
  mutable std::mutex mutex_;
  std::int64_t used_ = 0;      // sum of all accounts' max(reserved, in use)
  std::int64_t retained_ = 0;  // sum of free_'s sizes
  std::multimap<std::int64_t, kernels::Buffer> free_;
  bool shrinking_ = false;  // the thread has been told
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_STAGING_POOL_H_
