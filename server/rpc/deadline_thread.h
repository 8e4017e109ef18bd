#ifndef GDPCACHE_SERVER_RPC_DEADLINE_THREAD_H_
#define GDPCACHE_SERVER_RPC_DEADLINE_THREAD_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/time/time.h"
#include "server/cache/clock.h"

namespace gdpcache::rpc {

/// A thread that ends what has run out of time: sessions, transfers. It sleeps until the next one is due. Thread-safe.
class DeadlineThread {
 public:
  /// `expire` ends what is due and returns when the next will be (InfiniteFuture if nothing). What it uses must outlive
  /// the thread.
  DeadlineThread(const cache::Clock& clock, std::function<absl::Time()> expire);
  DeadlineThread(const DeadlineThread&) = delete;
  DeadlineThread& operator=(const DeadlineThread&) = delete;
  ~DeadlineThread();

  /// Something new may be due at `time`.
  void Expect(absl::Time time);

 private:
  void Run();

  const cache::Clock& clock_;
  const std::function<absl::Time()> expire_;
  std::mutex mutex_;
  std::condition_variable wake_;
  absl::Time next_ = absl::InfiniteFuture();
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_DEADLINE_THREAD_H_
