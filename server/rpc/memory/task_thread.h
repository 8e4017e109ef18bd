#ifndef GDPCACHE_SERVER_RPC_MEMORY_TASK_THREAD_H_
#define GDPCACHE_SERVER_RPC_MEMORY_TASK_THREAD_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/functional/any_invocable.h"

namespace gdpcache::rpc {

/// A thread for work that lasts too long for gRPC's: mapping and pinning memory. Tasks run one after the other, in the
/// order they were given. Thread-safe.
class TaskThread {
 public:
  using Task = absl::AnyInvocable<void()>;

  TaskThread() : thread_([this] { Work(); }) {}
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  /// Runs what has been given, then stops.
  ~TaskThread();

  void Run(Task task);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_MEMORY_TASK_THREAD_H_
