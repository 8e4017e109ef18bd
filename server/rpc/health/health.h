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
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/clock.h"
#include "server/rpc/deadline_thread.h"
#include "server/rpc/link.h"
#include "server/rpc/metrics/refusal_metrics.h"

namespace gdpcache::rpc {

class HealthCall;

/// What grpc.health.v1 tells: of each service, and as "" of the process itself. Thread-safe.
///
/// Everybody may ask, and gRPC takes in what a call sends, up to a whole message, before it is worth a look. So of
/// calls that have not sent all for a moment there are at most kMaxUnfinished: the oldest have to go. A probe is done
/// after one round trip, and is in nobody's way. Nor is a call over before its client has taken the end, and until then
/// gRPC takes in more: of those there are at most kMaxUnread, the oldest are cut off. Of either there are
/// kMaxMomentary, however young: the oldest goes for a new one, so that a probe gets through all the time.
///
/// A watch lasts as long as its client wants. Beyond kMaxWatches the host that has the most gets no more, and gives one
/// up for each that another host wants.
///
/// (gRPC's own health service has no such limits, so it is not used.)
class Health {
 public:
  static constexpr absl::Duration kMoment = absl::Seconds(1);
  static constexpr std::size_t kMaxMomentary = 256;
  static constexpr std::size_t kMaxUnfinished = 16;
  static constexpr std::size_t kMaxUnread = 64;
  static constexpr std::size_t kMaxWatches = 4'096;

  /// As on the wire.
  enum class Status : std::uint8_t { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

  /// The process is serving. `refusals` counts the calls that had to go; it and the clock must outlive this.
  Health(RefusalMetrics& refusals, const cache::Clock& clock);
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  void Set(const std::string& service, bool serving);
  /// All that it knows.
  void SetNotServing();
  Status Get(absl::string_view service) const;

 private:
  friend class HealthCall;
  using Call = std::shared_ptr<Link<HealthCall>>;

  /// Calls in a state that those of honest clients leave at once, oldest first.
  class Passing {
   public:
    /// At most so many for longer than a moment.
    explicit Passing(std::size_t most) : most_(most) {}

    /// nullptr, or the call that has to go for this one.
    Call Add(Call call, absl::Time now);
    void Remove(const Call& call);
    /// Takes those out that have to go by now.
    std::vector<Call> TakeOverdue(absl::Time now);
    /// When there will be more, unless calls go by themselves; InfiniteFuture if not.
    absl::Time due() const;

   private:
    struct Entry {
      Call call;
      absl::Time since;
    };
    const std::size_t most_;
    std::list<Entry> calls_;
  };

  /// nullptr, or the call that has to go for this one.
  Call Add(const Call& call, Passing& calls);
  struct Crowd {
    Call to_go;               // nullptr: there is room
    std::size_t of_host = 0;  // watches of its host
  };
  /// Unless it is the one that has to go itself, it is added.
  Crowd AddWatch(const std::string& host, const Call& call);
  void RemoveWatch(const std::string& host, const Call& call);
  void RemoveWatchLocked(const std::string& host, const Call& call);
  /// Ends the calls that have to go, and returns when there will be more.
  absl::Time EndOverdue();
  void WakeWatches() const;

  RefusalMetrics& refusals_;
  const cache::Clock& clock_;
  mutable std::mutex mutex_;  // guards what follows; a call may hold its own when it takes it, never the other way
  std::map<std::string, bool, std::less<>> serving_ = {{"", true}};
  Passing unfinished_{kMaxUnfinished};
  Passing unread_{kMaxUnread};                      // that have their status, but not ended
  std::map<std::string, std::list<Call>> watches_;  // by host; none is empty
  std::size_t watch_count_ = 0;

  DeadlineThread overdue_;  // the last: it uses all of the above
};

/// Take over one RPC and return its reactor, which deletes itself when the RPC is over. `health` must outlive it.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandleHealthCheck(Health& health,
                                                                               grpc::CallbackServerContext* context);
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandleHealthWatch(Health& health,
                                                                               grpc::CallbackServerContext* context);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_HEALTH_HEALTH_H_
