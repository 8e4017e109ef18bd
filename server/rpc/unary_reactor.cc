#include "server/rpc/unary_reactor.h"

namespace gdpcache::rpc {

void UnaryReactor::Leave() {
  if (users_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  { const std::lock_guard lock(mutex_); }  // behind a cancellation
  delete this;
}

}  // namespace gdpcache::rpc
