#ifndef GDPCACHE_CLIENT_COMMAND_TOP_POLLER_H_
#define GDPCACHE_CLIENT_COMMAND_TOP_POLLER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/command/top/model.h"
#include "gdpcache/client.h"

namespace gdpcache::command::top {

/// What the server says now. Within the client's timeout.
absl::StatusOr<Answer> Ask(const Client& client);

/// Asks a server again and again, on a thread of its own. Thread-safe.
class Poller {
 public:
  /// Asks at once and then every `interval`; `on_news` runs after each answer or failure, on the poller's thread.
  /// `client` must outlive this.
  Poller(const Client& client, absl::Duration interval, std::function<void()> on_news);
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  /// Waits for the answer to what it has asked.
  ~Poller();

  View view() const;

 private:
  void Run();

  const Client& client_;
  const absl::Duration interval_;
  const std::function<void()> on_news_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool stopping_ = false;
  Model model_;

  std::thread thread_;
};

}  // namespace gdpcache::command::top

#endif  // GDPCACHE_CLIENT_COMMAND_TOP_POLLER_H_
