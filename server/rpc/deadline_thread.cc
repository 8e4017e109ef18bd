#include "server/rpc/deadline_thread.h"

#include <algorithm>
#include <utility>

namespace gdpcache::rpc {

DeadlineThread::DeadlineThread(const cache::Clock& clock, std::function<absl::Time()> expire)
    : clock_(clock), expire_(std::move(expire)), thread_([this] { Run(); }) {}

DeadlineThread::~DeadlineThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void DeadlineThread::Expect(absl::Time time) {
  {
    const std::lock_guard lock(mutex_);
    if (time >= next_) return;
    next_ = time;
  }
  wake_.notify_one();
}

void DeadlineThread::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const absl::Time now = clock_.Now();
    if (now < next_) {
      // A day at most: that is far from what a condition variable's clock can hold.
      wake_.wait_for(lock, absl::ToChronoNanoseconds(std::min(next_ - now, absl::Hours(24))));
      continue;
    }
    next_ = absl::InfiniteFuture();  // before looking, so that Expect can set an earlier one meanwhile
    lock.unlock();
    const absl::Time next = expire_();
    lock.lock();
    next_ = std::min(next_, next);
  }
}

}  // namespace gdpcache::rpc
