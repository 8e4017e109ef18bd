#ifndef GDPCACHE_SERVER_RPC_UNARY_CALL_H_
#define GDPCACHE_SERVER_RPC_UNARY_CALL_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/call.h"
#include "server/rpc/unary_reactor.h"

namespace gdpcache::rpc {

/// A unary call of which no more is known than the engine's call that it runs, if any.
class UnaryCall final : public UnaryReactor {
 public:
  /// Sends the answer. Once, on any thread.
  void Answer(const absl::Status& status);

  /// Starts an engine's call whose done callback answers, and cancels it when the client does; or answers with the
  /// error. Only from the method that handles the call.
  void Run(absl::StatusOr<std::shared_ptr<engine::Call>> operation);

 private:
  void Cancelled() override;

  std::shared_ptr<engine::Call> operation_;  // the mutex guards it
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_UNARY_CALL_H_
