#ifndef GDPCACHE_SERVER_RPC_DETACHED_CALLS_H_
#define GDPCACHE_SERVER_RPC_DETACHED_CALLS_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cache/clock.h"

namespace gdpcache::rpc {

/// Running calls that belong to no session: transfers of snapshots, which a drain waits for and which are given up when
/// nothing moves, and watches, which a drain ends at once. Thread-safe.
class DetachedCalls {
  struct Entry;

 public:
  enum class Kind : std::uint8_t { kTransfer, kWatch };

  /// A call in progress. Movable.
  class Call {
   public:
    Call() = default;
    Call(Call&& other) noexcept = default;
    Call& operator=(Call&& other) noexcept;
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() { End(); }

    /// Bytes have moved.
    void Progress();
    /// The call touches nothing of the server any more.
    void End();

   private:
    friend class DetachedCalls;
    Call(DetachedCalls& calls, std::shared_ptr<Entry> entry) : calls_(&calls), entry_(std::move(entry)) {}
    DetachedCalls* calls_ = nullptr;
    std::shared_ptr<Entry> entry_;
  };

  /// Transfers end when nothing has moved for `stall_timeout`. `expect` is told when that may be the case.
  DetachedCalls(const cache::Clock& clock, absl::Duration stall_timeout, absl::AnyInvocable<void(absl::Time)> expect);
  DetachedCalls(const DetachedCalls&) = delete;
  DetachedCalls& operator=(const DetachedCalls&) = delete;

  /// `cancel` runs at most once, without a lock held, and must make the call end soon without blocking. It may still be
  /// running, on another thread, when the call ends. UNAVAILABLE once draining.
  absl::StatusOr<Call> Begin(Kind kind, absl::AnyInvocable<void(absl::Status)> cancel);

  /// Cancels the transfers that do not move. Returns when the next one may be due.
  absl::Time ExpireStalled();

  /// Refuses new calls and ends the watches. `on_drained` runs once, when the last call has ended.
  void Drain(absl::AnyInvocable<void()> on_drained);

  /// Cancels what is left; after Drain.
  void CancelAll();

 private:
  struct Entry {
    Kind kind = Kind::kTransfer;
    absl::AnyInvocable<void(absl::Status)> cancel;  // empty once called
    absl::Time moved;
    std::list<std::shared_ptr<Entry>>::iterator place;
  };

  void End(const std::shared_ptr<Entry>& entry);
  absl::AnyInvocable<void(absl::Status)> TakeCancelLocked(Entry& entry);

  const cache::Clock& clock_;
  const absl::Duration stall_timeout_;

  std::mutex mutex_;  // guards what follows, and the entries
  absl::AnyInvocable<void(absl::Time)> expect_;
  bool draining_ = false;
  std::list<std::shared_ptr<Entry>> entries_;
  absl::AnyInvocable<void()> on_drained_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_DETACHED_CALLS_H_
