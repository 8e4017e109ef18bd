#ifndef GDPCACHE_SERVER_ENGINE_EXECUTOR_H_
#define GDPCACHE_SERVER_ENGINE_EXECUTOR_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace gdpcache::engine {

/// A task that can be done together with others like it.
class MergeableTask {
 public:
  MergeableTask() = default;
  MergeableTask(const MergeableTask&) = delete;
  MergeableTask& operator=(const MergeableTask&) = delete;
  virtual ~MergeableTask() = default;

  /// Whether this and `other` can be done together.
  virtual bool MergesWith(const MergeableTask& other) const = 0;

  /// How much of what may be done together this is, from 0 to 1.
  virtual double share() const = 0;

  /// Does `tasks`, of which this is the first and merges with every other.
  virtual void RunMerged(absl::Span<const std::shared_ptr<MergeableTask>> tasks, kernels::Stream& stream) = 0;
};

/// Runs work on a few threads, each task with a stream of its own. Tasks run to completion and never wait for another
/// task. Owners (sessions) take turns: whoever has much waiting delays others by no more than one task. A worker that
/// takes a mergeable task takes others that wait and merge with it, too, from each owner in turn: nothing waits for the
/// sake of being merged. Thread-safe.
class Executor {
 public:
  using Task = absl::AnyInvocable<void(kernels::Stream&)>;
  using Owner = std::uint64_t;         // a session's key
  static constexpr Owner kNobody = 0;  // of work that belongs to no session

  /// `workers` threads; fails when the backend cannot make a stream.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(kernels::Backend& backend, int workers);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  /// Runs what has been submitted, then stops.
  ~Executor();

  /// Runs `task` on a worker. An owner's tasks start in the order they were submitted, but for those that merge.
  void Submit(Owner owner, Task task);
  void Submit(Owner owner, std::shared_ptr<MergeableTask> task);

  /// Runs `task` on this thread before it returns, for work that is done sooner than a worker would wake up; on a
  /// worker when all streams kept for this are taken.
  void RunHere(Owner owner, Task task);

  /// Tasks that are being run, each of those that have been merged.
  std::int64_t running() const;

 private:
  /// One of the two.
  struct Waiting {
    Task task;
    std::shared_ptr<MergeableTask> mergeable;
  };

  Executor() = default;
  void Submit(Owner owner, Waiting waiting);
  Waiting TakeLocked();
  /// `first` and what merges with it.
  std::vector<std::shared_ptr<MergeableTask>> CollectLocked(std::shared_ptr<MergeableTask> first);
  void Work(kernels::Stream& stream);

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  absl::flat_hash_map<Owner, std::deque<Waiting>> waiting_;  // none is empty
  std::deque<Owner> turns_;                                  // of waiting_, each once; the next one first
  std::int64_t running_ = 0;
  bool stopping_ = false;
  std::vector<std::unique_ptr<kernels::Stream>> spare_streams_;   // for RunHere
  std::vector<std::unique_ptr<kernels::Stream>> worker_streams_;  // fixed after Create
  std::vector<std::thread> workers_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_EXECUTOR_H_
