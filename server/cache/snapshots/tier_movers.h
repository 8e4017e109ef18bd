#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_TIER_MOVERS_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_TIER_MOVERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/store_state.h"

namespace gdpcache::cache {

/// The store's background threads, each with a stream of its own. One, the mover, copies between memory tiers and ends
/// what has expired. With a disk there is also one, the writer, that does everything that writes to it, so that of two
/// snapshots of one key the later is always written after the earlier one was removed; and some that load from it.
class TierMovers {
 public:
  static absl::StatusOr<std::unique_ptr<TierMovers>> Start(StoreState& state);
  TierMovers(const TierMovers&) = delete;
  TierMovers& operator=(const TierMovers&) = delete;
  ~TierMovers();  // waits for the copies that are being made

  bool IdleLocked() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  enum class Copied : std::uint8_t { kDone, kNoRoom, kTrouble };

  explicit TierMovers(StoreState& state) : state_(state) {}
  absl::Status StartThread(void (TierMovers::*run)(kernels::Stream&));

  void RunLoader(kernels::Stream& stream);
  void RunMover(kernels::Stream& stream);
  void RunWriter(kernels::Stream& stream);

  void Load(std::shared_ptr<SnapshotLoad> load, kernels::Stream& stream, Lock& lock);
  void FinishLoadLocked(SnapshotLoad& load, absl::StatusOr<SnapshotStore::Fetched> result, Aftermath& aftermath);
  void Promote(std::shared_ptr<SnapshotEntry> entry, kernels::Stream& stream, Lock& lock);

  /// Removes from disk what has been dropped.
  void EmptyRemovals(Lock& lock);
  /// The same, and tells those who wait for it. Not while a copy is being written that may have been deleted already.
  void FinishDeletions(Lock& lock);
  /// Drops copies that may go at once and that give way before `entry`, until they add up to as much as it takes or
  /// none is left; returns what they add up to.
  std::int64_t DropFor(const SnapshotEntry& entry, std::size_t level, Lock& lock);
  /// Copies to the level, dropping there what may go at once.
  Copied CopyDown(const std::shared_ptr<SnapshotEntry>& entry, std::size_t target, kernels::Stream& stream, Lock& lock);

  /// Levels whose relief is the writer's, or the mover's.
  std::size_t FirstLevelOfWriter() const;
  /// A level of [first, end) that has to make room, the slowest first; `end` if none.
  std::size_t DueForReliefLocked(std::size_t first, std::size_t end) const;
  /// Lets one copy leave the level.
  void Relieve(std::size_t level, kernels::Stream& stream, Lock& lock);
  void RelievedLocked(std::size_t level);
  void GiveUpReliefLocked(std::size_t level);
  void RetryParkedLocked(std::size_t level, bool last_try);

  void WaitForWork(std::condition_variable& work, Lock& lock);
  /// The same for at most a second if something may have to be done by then.
  void WaitForWorkOrTime(Lock& lock);

  StoreState& state_;
  std::vector<std::thread> threads_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_TIER_MOVERS_H_
