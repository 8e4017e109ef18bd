#include "server/rpc/unary_call.h"

#include <utility>

#include "server/rpc/call_context.h"
#include "server/rpc/status.h"

namespace gdpcache::rpc {

void UnaryCall::Answer(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  Finish(ToGrpcStatus(status));
}

void UnaryCall::Run(absl::StatusOr<std::shared_ptr<engine::Call>> operation) {
  if (!operation.ok()) return Answer(operation.status());
  // gRPC calls neither OnCancel nor OnDone before the method that handles the call has returned.
  {
    const std::lock_guard lock(mutex_);
    operation_ = *operation;
  }
  (*operation)->Start();
}

void UnaryCall::OnCancel() {
  std::shared_ptr<engine::Call> operation;
  {
    const std::lock_guard lock(mutex_);
    operation = operation_;
  }
  if (operation != nullptr) operation->Cancel(ClientGone());
}

void UnaryCall::OnDone() {
  { const std::lock_guard lock(mutex_); }
  delete this;
}

}  // namespace gdpcache::rpc
