#ifndef GDPCACHE_SERVER_RPC_SESSION_EXPIRY_H_
#define GDPCACHE_SERVER_RPC_SESSION_EXPIRY_H_

#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/time/time.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"

namespace gdpcache::rpc {

/// A thread that ends sessions when their lease runs out. It sleeps until the next one is due. Thread-safe.
class SessionExpiry {
 public:
  SessionExpiry(cache::Catalog& catalog, const cache::Clock& clock);
  SessionExpiry(const SessionExpiry&) = delete;
  SessionExpiry& operator=(const SessionExpiry&) = delete;
  ~SessionExpiry();

  /// A session has been opened that may expire at `time`.
  void Expect(absl::Time time);

 private:
  void Run();

  cache::Catalog& catalog_;
  const cache::Clock& clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  absl::Time next_ = absl::InfiniteFuture();
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_SESSION_EXPIRY_H_
