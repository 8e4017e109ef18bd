#ifndef GDPCACHE_SERVER_OBSERVE_LOG_LIMITER_H_
#define GDPCACHE_SERVER_OBSERVE_LOG_LIMITER_H_

#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/time/time.h"

namespace gdpcache::observe {

/// Keeps lines that clients cause from filling a disk: lets through `burst` at once and `per_second` on end.
/// Thread-safe.
class LogLimiter {
 public:
  LogLimiter(double per_second, double burst) : per_second_(per_second), burst_(burst), left_(burst) {}

  /// How many lines have been left out since the last one; nothing: leave out this one, too.
  std::optional<std::int64_t> Admit(absl::Time now);

 private:
  const double per_second_;
  const double burst_;
  std::mutex mutex_;  // guards what follows
  double left_;
  std::int64_t left_out_ = 0;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace gdpcache::observe

#endif  // GDPCACHE_SERVER_OBSERVE_LOG_LIMITER_H_
