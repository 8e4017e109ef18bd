#ifndef GDPCACHE_SERVER_ENGINE_EXECUTOR_H_
#define GDPCACHE_SERVER_ENGINE_EXECUTOR_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace gdpcache::engine {

/// Runs work on a few threads, each task with a stream of its own. Tasks run to completion and never wait for another
/// task. Thread-safe.
class Executor {
 public:
  using Task = absl::AnyInvocable<void(kernels::Stream&)>;

  /// `workers` threads; fails when the backend cannot make a stream.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(kernels::Backend& backend, int workers);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  /// Runs what has been submitted, then stops.
  ~Executor();

  /// Runs `task` on a worker. Tasks start in the order they were submitted.
  void Submit(Task task);

  /// Runs `task` on this thread before it returns, for work that is done sooner than a worker would wake up; on a
  /// worker when all streams kept for this are taken.
  void RunHere(Task task);

 private:
  Executor() = default;
  void Work(kernels::Stream& stream);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<kernels::Stream>> spare_streams_;   // for RunHere
  std::vector<std::unique_ptr<kernels::Stream>> worker_streams_;  // fixed after Create
  std::vector<std::thread> workers_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_EXECUTOR_H_
