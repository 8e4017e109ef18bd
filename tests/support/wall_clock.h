#ifndef GDPCACHE_TESTS_SUPPORT_WALL_CLOCK_H_
#define GDPCACHE_TESTS_SUPPORT_WALL_CLOCK_H_

#include "absl/time/time.h"

namespace gdpcache::test {

/// Sets the time of day that this program sees, gRPC included, forward or back, as an operator or NTP would. Steady
/// clocks go on. Thread-safe.
void SetTimeOfDay(absl::Duration forward);

/// Lets that much time pass for every clock.
void PassTime(absl::Duration time);

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_WALL_CLOCK_H_
