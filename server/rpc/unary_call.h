#ifndef GDPCACHE_SERVER_RPC_UNARY_CALL_H_
#define GDPCACHE_SERVER_RPC_UNARY_CALL_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/call.h"

namespace gdpcache::rpc {

/// One unary call in progress; deletes itself when gRPC is done with it. Its mutex is taken by whatever gRPC calls, so
/// that the order gRPC guarantees is visible to ThreadSanitizer, too.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  /// Sends the answer. Once, on any thread.
  void Answer(const absl::Status& status);

  /// Starts an engine's call whose done callback answers, and cancels it when the client does; or answers with the
  /// error. Only from the method that handles the call.
  void Run(absl::StatusOr<std::shared_ptr<engine::Call>> operation);

  void OnCancel() override;
  void OnDone() override;

 private:
  std::mutex mutex_;
  std::shared_ptr<engine::Call> operation_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_UNARY_CALL_H_
