#include "server/engine/event_poller.h"

#include <sys/prctl.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/cache/clock.h"

namespace gdpcache::engine {
namespace {

constexpr absl::Duration kShortestPause = absl::Microseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(10);
constexpr int kPausesInAWait = 128;
constexpr int kPausesInAFollowersWait = kPausesInAWait / 8;

}  // namespace

EventPoller::EventPoller() : thread_([this] { Run(); }) {}

void EventPoller::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void EventPoller::Watch(Look look, Owner owner) {
  const absl::Time now = cache::SteadyNow();
  const absl::Time due = now + kShortestPause;
  {
    const std::lock_guard lock(mutex_);
    added_.push_back({std::move(look), owner, now, due});
    if (due >= next_) return;  // the thread comes soon enough by itself
    next_ = due;
  }
  wake_.notify_one();
}

void EventPoller::Run() {
  // Of a sleep's end. By default 50 us are added to each.
  constexpr unsigned long kSlackNanoseconds = 1000;
  prctl(PR_SET_TIMERSLACK, kSlackNanoseconds, 0, 0, 0);
  std::vector<Watched> watched;
  std::unique_lock lock(mutex_);
  while (true) {
    std::move(added_.begin(), added_.end(), std::back_inserter(watched));
    added_.clear();
    if (watched.empty()) {
      if (stopping_) return;
      next_ = absl::InfiniteFuture();
      wake_.wait(lock);
      continue;
    }
    lock.unlock();
    const absl::Time next = LookAt(watched);
    lock.lock();
    if (!added_.empty() || watched.empty()) continue;
    next_ = next;
    wake_.wait_for(lock, absl::ToChronoNanoseconds(std::max(next - cache::SteadyNow(), absl::ZeroDuration())));
  }
}

absl::Time EventPoller::LookAt(std::vector<Watched>& watched) {
  absl::Time next = absl::InfiniteFuture();
  const auto first_of = [&watched](Owner owner) {
    return std::find_if(watched.begin(), watched.end(), [owner](const Watched& one) { return one.owner == owner; });
  };
  for (auto one = watched.begin(); one != watched.end();) {
    const absl::Time now = cache::SteadyNow();
    if (one->due <= now) {
      const Owner owner = one->owner;
      if (one->look()) {
        one = watched.erase(one);
        if (const auto first = first_of(owner); owner != kNobody && first != watched.end()) {
          first->due = now;
          next = std::min(next, now);
        }
        continue;
      }
      const bool follows = owner != kNobody && first_of(owner) != one;
      one->due = now + std::clamp((now - one->since) / (follows ? kPausesInAFollowersWait : kPausesInAWait),
                                  kShortestPause, kLongestPause);
    }
    next = std::min(next, one->due);
    ++one;
  }
  return next;
}

}  // namespace gdpcache::engine
