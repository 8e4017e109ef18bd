#include "client/command/bench/interruption.h"

#include <algorithm>
#include <atomic>

#include "absl/time/clock.h"

namespace gdpcache::bench {
namespace {

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

void Note(int /*signal*/) { interrupted = true; }

void Install(int signal, struct sigaction* previous) {
  struct sigaction action = {};
  action.sa_handler = Note;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigaction(signal, &action, previous);
}

}  // namespace

Interruption::Interruption() {
  interrupted = false;
  Install(SIGINT, &previous_interrupt_);
  Install(SIGTERM, &previous_terminate_);
}

Interruption::~Interruption() {
  sigaction(SIGINT, &previous_interrupt_, nullptr);
  sigaction(SIGTERM, &previous_terminate_, nullptr);
}

absl::Status CheckInterruption() { return interrupted ? absl::CancelledError("interrupted") : absl::OkStatus(); }

void SleepUnlessInterrupted(absl::Duration duration) {
  const absl::Time end = absl::Now() + duration;
  for (absl::Duration left = duration; left > absl::ZeroDuration() && !interrupted; left = end - absl::Now()) {
    absl::SleepFor(std::min(left, absl::Milliseconds(50)));
  }
}

}  // namespace gdpcache::bench
