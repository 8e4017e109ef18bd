#ifndef GDPCACHE_SERVER_ENGINE_CALL_H_
#define GDPCACHE_SERVER_ENGINE_CALL_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/cache/session.h"

namespace gdpcache::engine {

/// Who calls, and until when the answer is of use.
struct CallContext {
  std::shared_ptr<cache::Session> session;
  absl::Time deadline = absl::InfiniteFuture();
};

/// What the caller's tenant may use of the staging memory; nullptr: all there is.
inline std::shared_ptr<cache::MemoryBudget> StagingShare(const CallContext& context) {
  return cache::BudgetOf(context.session->tenant_use(), &cache::TenantUse::staging);
}
inline std::shared_ptr<cache::MemoryBudget> DeviceStagingShare(const CallContext& context) {
  return cache::BudgetOf(context.session->tenant_use(), &cache::TenantUse::device_staging);
}

/// A prepared operation on a cache. The engine's functions that make one check the arguments and touch nothing; its
/// `done` callback, given there, runs exactly once after Start, maybe before Start returns, never under a lock, and by
/// then the call holds no slot and no staging memory (but for a prefill with a done event, which is told of earlier:
/// its slots are later calls' by then, the rest when its work is complete, which the end of its session waits for).
/// Thread-safe; kept alive by the engine until done.
class Call {
 public:
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  virtual ~Call() = default;

  /// Takes the call's place in the order of its slots, as soon as it has what it needs for that. At most once.
  virtual void Start() = 0;

  /// Ends the call with `reason` unless its commit has begun or it is over. Never blocks for long.
  virtual void Cancel(absl::Status reason) = 0;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_CALL_H_
