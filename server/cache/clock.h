#ifndef GDPCACHE_SERVER_CACHE_CLOCK_H_
#define GDPCACHE_SERVER_CACHE_CLOCK_H_

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gdpcache::cache {

/// Where leases and deadlines take the time from; tests advance one by hand. Thread-safe.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

/// The time of day when the process first asked, going on steadily: setting the system's clock neither expires leases
/// and deadlines nor prolongs them, and no duration is an hour or negative for it. Thread-safe.
inline absl::Time SteadyNow() {
  static const absl::Time kStart = absl::Now();
  static const std::chrono::steady_clock::time_point kSteadyStart = std::chrono::steady_clock::now();
  return kStart + absl::FromChrono(std::chrono::steady_clock::now() - kSteadyStart);
}

class RealClock final : public Clock {
 public:
  absl::Time Now() const override { return SteadyNow(); }
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_CLOCK_H_
