#ifndef GDPCACHE_SERVER_CACHE_CLOCK_H_
#define GDPCACHE_SERVER_CACHE_CLOCK_H_

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

class RealClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_CLOCK_H_
