#ifndef GDPCACHE_SERVER_RPC_HEALTH_HEALTH_H_
#define GDPCACHE_SERVER_RPC_HEALTH_HEALTH_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "server/rpc/link.h"
#include "server/rpc/metrics/refusal_metrics.h"

namespace gdpcache::rpc {

class HealthCall;

/// What grpc.health.v1 tells: of each service, and as "" of the process itself. Thread-safe.
///
/// Everybody may ask, and gRPC takes in what a call sends, up to a whole message, before it is worth a look. So there
/// are at most kMaxUnfinished calls that have not sent all: the oldest has to go for a new one. A probe is done after
/// one round trip, and is in nobody's way. Nor is a call over before its client has taken the end, and until then gRPC
/// takes in more: of those there are at most kMaxUnread, the oldest is cut off. (gRPC's own health service has no such
/// limits, so it is not used.)
class Health {
 public:
  static constexpr std::size_t kMaxUnfinished = 16;
  static constexpr std::size_t kMaxUnread = 64;
  static constexpr std::size_t kMaxWatches = 4'096;

  /// As on the wire.
  enum class Status : std::uint8_t { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

  /// The process is serving. `refusals`, which must outlive this, counts the calls that had to go.
  explicit Health(RefusalMetrics& refusals) : refusals_(refusals) {}
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  void Set(const std::string& service, bool serving);
  /// All that it knows.
  void SetNotServing();
  Status Get(absl::string_view service) const;

 private:
  friend class HealthCall;
  using Calls = std::list<std::shared_ptr<Link<HealthCall>>>;

  void WakeWatches() const;

  RefusalMetrics& refusals_;
  mutable std::mutex mutex_;  // guards what follows; a call may hold its own when it takes it, never the other way
  std::map<std::string, bool, std::less<>> serving_ = {{"", true}};
  Calls unfinished_;  // oldest first
  Calls unread_;      // that have their status, but not ended; the same way
  Calls watches_;
};

/// Take over one RPC and return its reactor, which deletes itself when the RPC is over. `health` must outlive it.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandleHealthCheck(Health& health,
                                                                               grpc::CallbackServerContext* context);
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandleHealthWatch(Health& health,
                                                                               grpc::CallbackServerContext* context);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_HEALTH_HEALTH_H_
