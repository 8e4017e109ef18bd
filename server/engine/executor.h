#ifndef GDPCACHE_SERVER_ENGINE_EXECUTOR_H_
#define GDPCACHE_SERVER_ENGINE_EXECUTOR_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/container/node_hash_map.h"
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

  /// Does `tasks`, of which this is the first and merges with every other. Returns what tells their outcomes, which
  /// runs, on the same thread, after the next ones like them may have begun.
  virtual absl::AnyInvocable<void()> RunMerged(absl::Span<const std::shared_ptr<MergeableTask>> tasks,
                                               kernels::Stream& stream) = 0;
};

/// Runs work on a few threads, each task with a stream of its own. Tasks run to completion and never wait for another
/// task. Owners (sessions) take turns: whoever has much waiting delays others by no more than one task. A worker that
/// takes a mergeable task takes others that wait and merge with it, too, from each owner in turn. While two workers do
/// such tasks, others that merge with them wait for one of the two, and so find company. Thread-safe.
class Executor {
 public:
  using Task = absl::AnyInvocable<void(kernels::Stream&)>;
  using Owner = std::uint64_t;         // a session's key
  static constexpr Owner kNobody = 0;  // of work that belongs to no session

  /// When a task may run on the thread that submits it, before Submit returns, if a stream is left for it.
  enum class Here : std::uint8_t {
    kNever,
    kWhenIdle,  // nothing waits or runs, nor does another such task: for work that is short beside the caller's other
                // duties
    kAlways,    // for work that is done sooner than a worker would wake up
  };

  /// `workers` threads; fails when the backend cannot make a stream.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(kernels::Backend& backend, int workers);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor() { Stop(); }

  /// Runs what has been submitted, then ends the workers. Nothing may be submitted afterwards.
  void Stop();

  /// An owner's tasks start on workers in the order they were submitted, but for those that merge.
  void Submit(Owner owner, Task task, Here here = Here::kNever);
  void Submit(Owner owner, std::shared_ptr<MergeableTask> task, Here here = Here::kNever);

  /// A stream for work that is still under way when the task that gives it, on `of_task`, returns; `tasks` more count
  /// as running until it is given back. nullptr when all are in use: then whoever runs the task waits for the work. A
  /// mergeable task that runs where it was submitted is sure of one.
  std::unique_ptr<kernels::Stream> TakeStream(std::int64_t tasks, const kernels::Stream& of_task);
  void GiveBack(std::unique_ptr<kernels::Stream> stream, std::int64_t tasks);
  /// Whether a mergeable task could run where it is submitted, for now.
  bool HasStream() const;

  /// Tasks that are being run, each of those that have been merged.
  std::int64_t running() const;

 private:
  /// One of the two.
  struct Waiting {
    Task task;
    std::shared_ptr<MergeableTask> mergeable;
  };

  /// An owner's tasks that wait.
  struct Queue {
    Owner owner;
    std::list<Waiting> tasks;
  };

  /// What a worker does next: `task` or, if that is null, `merged`.
  struct Taken {
    Task task;
    std::vector<std::shared_ptr<MergeableTask>> merged;
  };

  Executor() = default;
  void Submit(Owner owner, Waiting waiting, Here here);
  /// Whether enough streams are left for a task to run where it is submitted.
  bool HasStreamsLocked(bool is_mergeable) const {
    return spare_streams_.size() >= promised_.size() + (is_mergeable ? 2 : 1);
  }
  void RunHere(Waiting waiting, Here here, std::unique_ptr<kernels::Stream> stream);
  /// Whether enough workers do tasks like `waiting` already.
  bool HasToWaitLocked(const Waiting& waiting) const;
  /// The owner whose turn it is, of those whose next task need not wait.
  std::deque<Queue*>::iterator NextLocked();
  Taken TakeLocked(std::deque<Queue*>::iterator turn);
  /// `first` and what merges with it.
  std::vector<std::shared_ptr<MergeableTask>> CollectLocked(std::shared_ptr<MergeableTask> first);
  /// Whether the caller is to wake a worker, by notifying one. One at a time is on its way: it may take all there is,
  /// and if not, it calls the next.
  bool CallsWorkerLocked();
  void Work(kernels::Stream& stream);
  void RunMerged(absl::Span<const std::shared_ptr<MergeableTask>> tasks, kernels::Stream& stream);

  mutable std::mutex mutex_;                   // guards what follows, up to wake_
  absl::node_hash_map<Owner, Queue> waiting_;  // none is empty
  std::deque<Queue*> turns_;                   // of waiting_, each once; the next one first
  std::vector<const MergeableTask*> merging_;  // the first of those that each worker does together
  int sleeping_ = 0;                           // workers
  int called_ = 0;                             // of those, on their way
  int busy_ = 0;                               // workers, and threads that run kWhenIdle tasks
  std::int64_t running_ = 0;
  bool stopping_ = false;
  // For tasks that run on their submitter's thread, and for work that outlasts its task.
  std::vector<std::unique_ptr<kernels::Stream>> spare_streams_;
  std::vector<const kernels::Stream*> promised_;  // of the tasks for which one of the spare streams is kept

  // Shared with whoever wakes a worker, for the executor may go as soon as the task is done.
  const std::shared_ptr<std::condition_variable> wake_ = std::make_shared<std::condition_variable>();
  std::vector<std::unique_ptr<kernels::Stream>> worker_streams_;  // fixed after Create
  std::vector<std::thread> workers_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_EXECUTOR_H_
