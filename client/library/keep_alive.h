#ifndef GDPCACHE_CLIENT_LIBRARY_KEEP_ALIVE_H_
#define GDPCACHE_CLIENT_LIBRARY_KEEP_ALIVE_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/library/connection.h"
#include "grpcpp/client_context.h"

namespace gdpcache::client {

/// Renews a session every third of its time to live from a thread of its own, until the server says that the session is
/// gone or the object is destroyed. A server that cannot be reached is asked again.
class KeepAlive {
 public:
  KeepAlive(std::shared_ptr<const Connection> connection, std::string session, absl::Duration ttl);
  KeepAlive(const KeepAlive&) = delete;
  KeepAlive& operator=(const KeepAlive&) = delete;

  /// Cancels a renewal under way.
  ~KeepAlive();

  /// OK, or why it has given up. Thread-safe.
  absl::Status status() const;

 private:
  void Run();

  const std::shared_ptr<const Connection> connection_;
  const std::string session_;
  const absl::Duration interval_;

  mutable std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  grpc::ClientContext* renewal_ = nullptr;  // the call under way
  absl::Status status_;
  std::thread thread_;
};

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_KEEP_ALIVE_H_
