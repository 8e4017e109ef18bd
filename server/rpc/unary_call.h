#ifndef GDPCACHE_SERVER_RPC_UNARY_CALL_H_
#define GDPCACHE_SERVER_RPC_UNARY_CALL_H_

#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/engine/call.h"
#include "server/engine/staging_pool.h"
#include "server/rpc/call_log.h"
#include "server/rpc/unary_reactor.h"

namespace gdpcache::rpc {

/// A unary call of which no more is known than the engine's call that it runs, if any.
class UnaryCall final : public UnaryReactor {
 public:
  /// All as for LoggedRpc.
  UnaryCall(CallLog& log, absl::string_view method, grpc::CallbackServerContext& context) : rpc_(log, method, context) {
    const std::lock_guard lock(mutex());  // what has been set up is visible to whoever takes it next
  }

  /// What the log is to say of it, before it runs or is answered.
  LoggedRpc& rpc() { return rpc_; }

  /// Keeps what the answer takes counted until the client has taken it. Before it is sent.
  void Keep(std::shared_ptr<engine::StagingAccount> account) { account_ = std::move(account); }

  /// Sends the answer. Once, on any thread.
  void Answer(const absl::Status& status);

  /// Starts an engine's call whose done callback answers, and cancels it when the client does; or answers with the
  /// error. Only from the method that handles the call.
  void Run(absl::StatusOr<std::shared_ptr<engine::Call>> operation);

 private:
  void Cancelled() override;

  LoggedRpc rpc_;
  std::shared_ptr<engine::StagingAccount> account_;
  std::shared_ptr<engine::Call> operation_;  // the mutex guards it
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_UNARY_CALL_H_
