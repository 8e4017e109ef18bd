#ifndef GDPCACHE_SERVER_RPC_CALL_LOG_H_
#define GDPCACHE_SERVER_RPC_CALL_LOG_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/clock.h"
#include "server/cache/session.h"
#include "server/engine/prefill_result.h"
#include "server/observe/log_limiter.h"
#include "server/observe/logging.h"
#include "server/rpc/metrics/refusal_metrics.h"

namespace gdpcache::rpc {

/// Where RPCs that failed or took long are told of. So many lines at most, whatever clients do: ten a second of either
/// kind, a hundred after a pause. Those that were refused are counted, too. Thread-safe.
class CallLog {
 public:
  /// RPCs that take at least `slow` are logged; zero: none is. The metrics must outlive this.
  CallLog(absl::Duration slow, RefusalMetrics& refusals) : slow_(slow), refusals_(refusals) {}
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

 private:
  friend class LoggedRpc;

  const absl::Duration slow_;
  RefusalMetrics& refusals_;
  observe::LogLimiter failed_{10, 100};
  observe::LogLimiter slow_lines_{10, 100};
};

/// What the log says of one RPC: method, the id that its client gave it, session (its number in the server: the id that
/// clients know is a secret), cache, client, peer, duration, and of a prefill where the time went. Nothing of what it
/// carries. Not thread-safe.
///
/// An RPC's id is what its request says, else its "x-request-id" metadata, else made up. Where an RPC fails, the
/// trailing metadata has it, too, so that what a client sees can be found in the log.
class LoggedRpc {
 public:
  /// Both must outlive this, as must `method`. The RPC has just arrived.
  LoggedRpc(CallLog& log, absl::string_view method, grpc::CallbackServerContext& context)
      : log_(log), method_(method), context_(context) {}
  LoggedRpc(const LoggedRpc&) = delete;
  LoggedRpc& operator=(const LoggedRpc&) = delete;

  // What is known of it by and by.
  void SetSession(const cache::Session& session);
  void SetCache(absl::string_view cache) { cache_ = std::string(cache.substr(0, kMaxNameBytes)); }
  void SetRequestId(absl::string_view id) { request_id_ = std::string(id.substr(0, kMaxNameBytes)); }

  /// The status to finish with. Once.
  grpc::Status End(const absl::Status& status);
  grpc::Status End(const engine::PrefillTiming& timing);

 private:
  static constexpr std::size_t kMaxNameBytes = 128;  // whatever clients say

  void EndWell(const engine::PrefillTiming* timing);
  std::string RequestId() const;
  void LogLine(observe::LogLevel level, observe::LogLimiter& limiter, const std::string& message,
               const std::string& request_id, const engine::PrefillTiming* timing) const;

  CallLog& log_;
  const absl::string_view method_;
  grpc::CallbackServerContext& context_;
  const absl::Time arrived_ = cache::SteadyNow();
  std::optional<cache::SessionKey> session_;  // not the session: nothing is to stay for the sake of a line in the log
  std::string tenant_;
  std::string client_;
  std::string cache_;
  std::string request_id_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CALL_LOG_H_
