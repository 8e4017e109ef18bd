#ifndef GDPCACHE_SERVER_ENGINE_ADMISSION_H_
#define GDPCACHE_SERVER_ENGINE_ADMISSION_H_

#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gdpcache::engine {

struct AdmissionLimits {
  /// Calls under way at a time; one session may have half of them.
  std::int64_t max_calls = 4'096;
  /// How long a call may have to wait for the workers, as far as can be told when it comes.
  absl::Duration max_wait = absl::Seconds(10);
};

/// Decides which calls the engine takes, so that those it takes are done in a bounded time: refusing costs next to
/// nothing, waiting costs memory and everybody's patience. The wait that a call has before it is what its turn leaves
/// in front of it (sessions take turns), over the speed at which such work was done lately. That speed is measured
/// while work waits, and only then: before, there is no wait to tell of.
///
/// Work is counted in about milliseconds; only the ratios between calls matter. Callers say what time it is, and it
/// never goes back. Thread-safe.
class Admission {
 public:
  using Owner = std::uint64_t;  // a session's key

  /// What `workers` threads do at a time waits for nobody.
  Admission(const AdmissionLimits& limits, int workers) : limits_(limits), workers_(workers) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  /// Whether a call would be taken now. RESOURCE_EXHAUSTED names what there is and what there may be, and when to come
  /// again: when the work that is too much will have been done.
  absl::Status Check(Owner owner, absl::Time now);

  /// The same, and the call is under way, until End.
  absl::Status Begin(Owner owner, absl::Time now);
  /// For calls that nobody can do without, whatever is under way.
  void BeginInAnyCase(Owner owner);
  void End(Owner owner);

  /// A step of a call that is under way is the workers' to do: it waits or runs.
  void StepSubmitted(Owner owner, double work, absl::Time now);
  void StepDone(Owner owner, double work, absl::Time now);

  std::int64_t calls() const;
  /// Of a session that has nothing under way.
  absl::Duration expected_wait() const;

 private:
  struct Share {
    std::int64_t calls = 0;
    std::int64_t steps = 0;
    double work = 0;  // of these
  };

  using Shares = absl::flat_hash_map<Owner, Share>;

  void EraseIfEmptyLocked(Shares::iterator share);
  void BeginLocked(Owner owner);
  absl::Status CheckLocked(Owner owner, absl::Time now);
  void AdvanceLocked(absl::Time now);
  /// Work per second; 0 while nothing is known.
  double RateLocked() const;
  double WorkAheadLocked(const Share& own) const;
  absl::Duration TimeForLocked(double work) const;
  bool WorkWaitsLocked() const { return steps_ > workers_; }

  const AdmissionLimits limits_;
  const std::int64_t workers_;

  mutable std::mutex mutex_;  // guards what follows
  Shares shares_;
  std::int64_t calls_ = 0;
  std::int64_t steps_ = 0;
  double work_ = 0;
  absl::Time last_ = absl::InfinitePast();
  absl::Duration measured_;  // while work waited, lately
  double done_ = 0;          // in that time
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_ADMISSION_H_
