#ifndef GDPCACHE_SERVER_ENGINE_EVENT_POLLER_H_
#define GDPCACHE_SERVER_ENGINE_EVENT_POLLER_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace gdpcache::engine {

/// Notices what happens on a device, for those who must not block a thread by waiting for it. A thread of its own looks
/// at everything that is watched, again and again: after 20 us for the first time, and then so often that it is late by
/// no more than a per cent of the wait, and never by more than about 10 ms. What an owner (a session) has watched in
/// addition is likely to be over in the same order: it is looked at eight times less often, until all before it is
/// over. It sleeps while nothing is watched. Thread-safe.
class EventPoller {
 public:
  /// Tells whether it is over, and if so has done what there is to do. Runs on the poller's thread, without a lock
  /// held, until it is; must not block.
  using Look = absl::AnyInvocable<bool()>;
  using Owner = std::uint64_t;         // a session's key
  static constexpr Owner kNobody = 0;  // of what is looked at by itself

  EventPoller();
  EventPoller(const EventPoller&) = delete;
  EventPoller& operator=(const EventPoller&) = delete;
  ~EventPoller() { Stop(); }

  void Watch(Look look, Owner owner = kNobody);

  /// Waits until everything that is watched is over. Nothing may be watched afterwards.
  void Stop();

 private:
  struct Watched {
    Look look;
    Owner owner;
    absl::Time since;
    absl::Time due;  // when to look next
  };

  void Run();
  /// Looks at what is due, in the order in which it has come, and returns when that will be the case again.
  static absl::Time LookAt(std::vector<Watched>& watched);

  std::mutex mutex_;  // guards what follows, up to thread_
  std::condition_variable wake_;
  std::vector<Watched> added_;                // not yet seen by the thread
  absl::Time next_ = absl::InfiniteFuture();  // until then the thread sleeps
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_EVENT_POLLER_H_
