#ifndef GDPCACHE_TESTS_SUPPORT_MANUAL_CLOCK_H_
#define GDPCACHE_TESTS_SUPPORT_MANUAL_CLOCK_H_

#include <mutex>

#include "absl/time/time.h"
#include "server/cache/clock.h"

namespace gdpcache::test {

/// Stands still until a test moves it. Thread-safe.
class ManualClock final : public cache::Clock {
 public:
  absl::Time Now() const override {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  void Advance(absl::Duration by) {
    const std::lock_guard lock(mutex_);
    now_ += by;
  }

 private:
  mutable std::mutex mutex_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000'000);
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_MANUAL_CLOCK_H_
