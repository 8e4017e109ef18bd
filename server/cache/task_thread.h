#ifndef GDPCACHE_SERVER_CACHE_TASK_THREAD_H_
#define GDPCACHE_SERVER_CACHE_TASK_THREAD_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace gdpcache::cache {

/// A thread for what lasts too long for those that everybody waits for, gRPC's threads and the engine's poller: taking
/// memory from the system and the device, and giving it back, which waits for all that the device has to do. Tasks run
/// one after the other, in the order they were given. Thread-safe.
class TaskThread {
 public:
  using Task = absl::AnyInvocable<void()>;

  TaskThread() : thread_([this] { Work(); }) {}
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  /// Runs what has been given, then stops.
  ~TaskThread();

  void Run(Task task);

  /// Waits until what has been given so far has been run. Not on the thread itself.
  void Finish();

  /// The same object, whose destructor runs on this thread, whoever lets go of it last: at once there, else as a task.
  /// The thread must outlive it. Nobody may keep what has been passed.
  template <typename T>
  std::shared_ptr<T> EndHere(std::shared_ptr<T> object) {
    T* const pointer = object.get();
    return std::shared_ptr<T>(pointer, [this, object = std::move(object)](T* /*pointer*/) mutable {
      if (std::this_thread::get_id() == thread_.get_id()) {
        object.reset();
      } else {
        Run([object = std::move(object)]() mutable { object.reset(); });
      }
    });
  }

 private:
  void Work();

  std::mutex mutex_;  // guards what follows, up to thread_
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<Task> tasks_;
  std::int64_t given_count_ = 0;
  std::int64_t done_count_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_TASK_THREAD_H_
