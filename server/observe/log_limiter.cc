#include "server/observe/log_limiter.h"

#include <algorithm>
#include <utility>

namespace gdpcache::observe {

std::optional<std::int64_t> LogLimiter::Admit(absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (now > last_) {
    left_ = std::min(burst_, left_ + per_second_ * absl::ToDoubleSeconds(now - last_));
    last_ = now;
  }
  if (left_ < 1) {
    ++left_out_;
    return std::nullopt;
  }
  left_ -= 1;
  return std::exchange(left_out_, 0);
}

}  // namespace gdpcache::observe
