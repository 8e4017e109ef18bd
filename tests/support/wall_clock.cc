#include "tests/support/wall_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

std::atomic<std::int64_t> g_of_day = 0;  // nanoseconds
std::atomic<std::int64_t> g_passed = 0;

}  // namespace

// In the place of the C library's.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (syscall(SYS_clock_gettime, clock, time) != 0) return -1;
  const bool of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  const bool steady = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
  if (!of_day && !steady) return 0;
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t nanoseconds = time->tv_sec * kSecond + time->tv_nsec + g_passed + (of_day ? g_of_day.load() : 0);
  time->tv_sec = nanoseconds / kSecond;
  time->tv_nsec = nanoseconds % kSecond;
  return 0;
}

namespace gdpcache::test {

void SetTimeOfDay(absl::Duration forward) { g_of_day += absl::ToInt64Nanoseconds(forward); }

void PassTime(absl::Duration time) { g_passed += absl::ToInt64Nanoseconds(time); }

}  // namespace gdpcache::test
