#ifndef GDPCACHE_SERVER_CACHE_MEMORY_BUDGET_H_
#define GDPCACHE_SERVER_CACHE_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace gdpcache::cache {

/// Counts bytes against a limit. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::int64_t limit) : limit_(limit) {}

  /// Takes `bytes` (not negative), or nothing and returns false.
  bool TryTake(std::int64_t bytes) {
    std::int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  /// Takes them even beyond the limit.
  void Take(std::int64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  void GiveBack(std::int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::int64_t limit() const { return limit_; }
  std::int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const std::int64_t limit_;
  std::atomic<std::int64_t> used_ = 0;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_MEMORY_BUDGET_H_
