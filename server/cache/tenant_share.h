#ifndef GDPCACHE_SERVER_CACHE_TENANT_SHARE_H_
#define GDPCACHE_SERVER_CACHE_TENANT_SHARE_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "server/cache/memory_budget.h"

namespace gdpcache::cache {

/// The part of a limit that one tenant may use up, where there are several.
struct TenantShare {
  std::int64_t percent = 100;

  bool is_all() const { return percent >= 100; }
  std::int64_t Of(std::int64_t limit) const {
    if (is_all()) return limit;
    // Divided first: a limit times 100 may not fit.
    return std::max<std::int64_t>(1, limit / 100 * percent + limit % 100 * percent / 100);
  }
};

/// What the sessions, transfers and caches of one tenant use of what all tenants share. Thread-safe.
struct TenantUse {
  TenantUse(std::int64_t max_calls, std::int64_t staging_bytes, std::int64_t state_bytes)
      : calls(max_calls), staging(staging_bytes), device_staging(staging_bytes), states(state_bytes) {}

  MemoryBudget calls;           // under way
  MemoryBudget staging;         // bytes of host memory
  MemoryBudget device_staging;  // of device memory
  MemoryBudget states;          // bytes of the caches that it has made
};

/// One of its budgets, which keeps it; nullptr of nullptr, which is no limit.
inline std::shared_ptr<MemoryBudget> BudgetOf(const std::shared_ptr<TenantUse>& use, MemoryBudget TenantUse::*budget) {
  return use == nullptr ? nullptr : std::shared_ptr<MemoryBudget>(use, &(use.get()->*budget));
}

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_TENANT_SHARE_H_
