#include "server/rpc/unary_reactor.h"

namespace gdpcache::rpc {

void UnaryReactor::Answer(const grpc::Status& status) {
  std::unique_lock lock(mutex_);
  answering_ = std::this_thread::get_id();
  Finish(status);
  answering_ = std::thread::id();
  if (!done_) return;
  lock.unlock();
  delete this;
}

void UnaryReactor::OnCancel() {
  if (BelowAnswer()) return;
  Cancelled();
}

void UnaryReactor::OnDone() {
  if (BelowAnswer()) {
    done_ = true;
    return;
  }
  { const std::lock_guard lock(mutex_); }  // behind whoever has answered
  delete this;
}

}  // namespace gdpcache::rpc
