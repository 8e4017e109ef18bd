#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_INTERRUPTION_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_INTERRUPTION_H_

#include <signal.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gdpcache::bench {

/// While one exists, the first SIGINT or SIGTERM is only noted, so that what is measured with can be cleaned up; the
/// second ends the process. One at a time.
class Interruption {
 public:
  Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  ~Interruption();

 private:
  struct sigaction previous_interrupt_ = {};
  struct sigaction previous_terminate_ = {};
};

/// CANCELLED once a signal was noted. Any thread.
absl::Status CheckInterruption();

/// Sleeps, but not much longer than until a signal is noted.
void SleepUnlessInterrupted(absl::Duration duration);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_INTERRUPTION_H_
