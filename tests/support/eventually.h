#ifndef GDPCACHE_TESTS_SUPPORT_EVENTUALLY_H_
#define GDPCACHE_TESTS_SUPPORT_EVENTUALLY_H_

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gdpcache::test {

/// Whether `condition` comes true before a minute is over. For what another process does by itself.
inline bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_EVENTUALLY_H_
