#ifndef GDPCACHE_KERNELS_CPU_THREAD_POOL_H_
#define GDPCACHE_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace gdpcache::kernels::cpu {

/// Threads that help their callers. Any number of threads may call Run at once; each also works on its own call, so
/// that none waits for helpers that are busy elsewhere. While there are as many callers as threads, helpers are left
/// asleep, for they would only take turns with them; a caller that leaves wakes one in its place.
class ThreadPool {
 public:
  /// A pool whose calls run on up to `threads` threads, the caller's included. RESOURCE_EXHAUSTED when the system
  /// refuses to start them.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Create(int threads);

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  /// Runs `work` on the calling thread and, as they become free, on up to `max_helpers` helpers at the same time;
  /// returns when all have returned. `work` takes its share of the whole from something the callers share, and returns
  /// once nothing is left.
  void Run(int max_helpers, absl::FunctionRef<void()> work);

 private:
  struct Call {
    absl::FunctionRef<void()> work;
    int helpers_wanted;
    int helpers_working = 0;
  };

  ThreadPool() = default;
  void RunWithHelpers(int helpers, absl::FunctionRef<void()> work);
  void HelperLoop();

  std::mutex mutex_;
  std::condition_variable call_waiting_;
  std::condition_variable helper_done_;
  std::list<Call*> waiting_;  // calls that want helpers, oldest first
  std::atomic<int> callers_ = 0;
  std::atomic<int> calls_waiting_ = 0;  // the size of waiting_
  bool stopping_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace gdpcache::kernels::cpu

#endif  // GDPCACHE_KERNELS_CPU_THREAD_POOL_H_
