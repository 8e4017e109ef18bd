#include "server/rpc/unary_call.h"

#include <mutex>

#include "server/rpc/call_context.h"

namespace gdpcache::rpc {

void UnaryCall::Answer(const absl::Status& status) { UnaryReactor::Answer(rpc_.End(status)); }

void UnaryCall::Run(absl::StatusOr<std::shared_ptr<engine::Call>> operation) {
  if (!operation.ok()) return Answer(operation.status());
  // gRPC calls neither OnCancel nor OnDone before the method that handles the call has returned.
  {
    const std::lock_guard lock(mutex());
    operation_ = *operation;
  }
  (*operation)->Start();
}

void UnaryCall::Cancelled() {
  std::shared_ptr<engine::Call> operation;
  {
    const std::lock_guard lock(mutex());
    operation = operation_;
  }
  if (operation != nullptr) operation->Cancel(ClientGone());
}

}  // namespace gdpcache::rpc
