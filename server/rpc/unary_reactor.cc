#include "server/rpc/unary_reactor.h"

namespace gdpcache::rpc {

UnaryReactor::UnaryReactor() = default;
UnaryReactor::~UnaryReactor() = default;

void UnaryReactor::Answer(const grpc::Status& status) {
  { const std::lock_guard lock(mutex_); }  // OnDone comes behind what was done before
  Finish(status);
  Leave();
}

void UnaryReactor::OnCancel() {
  { const std::lock_guard lock(mutex_); }
  Cancelled();
}

void UnaryReactor::OnDone() {
  { const std::lock_guard lock(mutex_); }
  Ended();
  Leave();
}

void UnaryReactor::Leave() {
  {
    const std::lock_guard lock(mutex_);
    if (--users_ > 0) return;
  }
  delete this;
}

}  // namespace gdpcache::rpc
