#include "client/command/top/poller.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/time/clock.h"

namespace gdpcache::command::top {

absl::StatusOr<Answer> Ask(const Client& client) {
  absl::StatusOr<ServerInfo> info = client.GetServerInfo();
  if (!info.ok()) return info.status();
  absl::StatusOr<ServerStats> stats = client.GetServerStats();
  if (!stats.ok()) return stats.status();
  return Answer{*std::move(info), *std::move(stats)};
}

Poller::Poller(const Client& client, absl::Duration interval, std::function<void()> on_news)
    : client_(client), interval_(interval), on_news_(std::move(on_news)), model_(client.address()), thread_([this] {
        Run();
      }) {}

Poller::~Poller() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

View Poller::view() const {
  const std::lock_guard lock(mutex_);
  return model_.view();
}

void Poller::Run() {
  auto next = std::chrono::steady_clock::now();
  while (true) {
    absl::StatusOr<Answer> answer = Ask(client_);
    {
      const std::lock_guard lock(mutex_);
      if (answer.ok()) {
        model_.Answered(absl::Now(), *std::move(answer));
      } else {
        model_.Failed(absl::Now(), answer.status());
      }
    }
    on_news_();
    // What took longer than an interval is not made up for.
    next = std::max(next + absl::ToChronoNanoseconds(interval_), std::chrono::steady_clock::now());
    std::unique_lock lock(mutex_);
    if (wake_.wait_until(lock, next, [this] { return stopping_; })) return;
  }
}

}  // namespace gdpcache::command::top
