#include "server/engine/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"
#include "server/engine/overload.h"

namespace gdpcache::engine {
namespace {

// Behind the workers as many may wait whatever the estimate says: it tells nothing of few calls of very different size.
constexpr std::int64_t kAlwaysWaiting = 4;

// Half of what is known of the speed is older than this.
constexpr absl::Duration kMemory = absl::Seconds(1);
constexpr absl::Duration kLeastMeasured = absl::Milliseconds(20);

constexpr absl::Duration kShortestRetry = absl::Milliseconds(5);
constexpr absl::Duration kLongestRetry = absl::Seconds(30);
constexpr absl::Duration kUnknownRetry = absl::Milliseconds(100);

absl::Duration Clamped(absl::Duration retry_after) { return std::clamp(retry_after, kShortestRetry, kLongestRetry); }

// To be read, not computed with.
std::string Rounded(absl::Duration duration) {
  return absl::FormatDuration(absl::Ceil(duration, absl::Milliseconds(1)));
}

}  // namespace

absl::Status Admission::Check(Owner owner, absl::Time now) {
  const std::lock_guard lock(mutex_);
  return CheckLocked(owner, now);
}

absl::Status Admission::Begin(Owner owner, absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = CheckLocked(owner, now); !status.ok()) return status;
  BeginLocked(owner);
  return absl::OkStatus();
}

void Admission::BeginInAnyCase(Owner owner) {
  const std::lock_guard lock(mutex_);
  BeginLocked(owner);
}

void Admission::BeginLocked(Owner owner) {
  ++calls_;
  ++shares_[owner].calls;
}

void Admission::End(Owner owner) {
  const std::lock_guard lock(mutex_);
  --calls_;
  const auto share = shares_.find(owner);
  --share->second.calls;
  EraseIfEmptyLocked(share);
}

void Admission::StepSubmitted(Owner owner, double work, absl::Time now) {
  const std::lock_guard lock(mutex_);
  AdvanceLocked(now);
  ++steps_;
  work_ += work;
  Share& share = shares_[owner];
  ++share.steps;
  share.work += work;
}

void Admission::StepDone(Owner owner, double work, absl::Time now) {
  const std::lock_guard lock(mutex_);
  AdvanceLocked(now);
  if (WorkWaitsLocked()) done_ += work;
  --steps_;
  work_ = steps_ == 0 ? 0 : work_ - work;  // no rounding errors stay
  const auto found = shares_.find(owner);
  Share& share = found->second;
  --share.steps;
  share.work = share.steps == 0 ? 0 : share.work - work;
  EraseIfEmptyLocked(found);
}

std::int64_t Admission::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

absl::Duration Admission::expected_wait() const {
  const std::lock_guard lock(mutex_);
  return WorkWaitsLocked() ? TimeForLocked(WorkAheadLocked({})) : absl::ZeroDuration();
}

absl::Status Admission::CheckLocked(Owner owner, absl::Time now) {
  AdvanceLocked(now);
  const auto found = shares_.find(owner);
  const Share own = found == shares_.end() ? Share{} : found->second;
  const auto retry_after = [this](double work) {
    return Clamped(RateLocked() > 0 ? TimeForLocked(work) : kUnknownRetry);
  };
  if (calls_ >= limits_.max_calls) {
    return Overloaded(absl::StrCat("the server has ", cache::Counted(calls_, "call"),
                                   " under way; it may have at most ", limits_.max_calls),
                      retry_after(work_ / 2));
  }
  const std::int64_t most_of_one = std::max<std::int64_t>(1, limits_.max_calls / 2);
  if (own.calls >= most_of_one) {
    return Overloaded(absl::StrCat("the session has ", cache::Counted(own.calls, "call"),
                                   " under way; one session may have at most ", most_of_one),
                      retry_after(own.work / 2));
  }
  if (steps_ < workers_ + kAlwaysWaiting || TimeForLocked(work_) <= limits_.max_wait) return absl::OkStatus();
  const absl::Duration wait = TimeForLocked(WorkAheadLocked(own));
  if (wait <= limits_.max_wait) return absl::OkStatus();
  return Overloaded(
      absl::StrCat("the call would have to wait about ", Rounded(wait),
                   " for its turn; calls may have to wait at most ", absl::FormatDuration(limits_.max_wait)),
      Clamped(wait - limits_.max_wait / 2));
}

void Admission::EraseIfEmptyLocked(Shares::iterator share) {
  if (share->second.calls == 0 && share->second.steps == 0) shares_.erase(share);
}

void Admission::AdvanceLocked(absl::Time now) {
  if (WorkWaitsLocked() && now > last_) {
    measured_ += now - last_;
    if (done_ > 0 && measured_ > 2 * kMemory) {
      done_ *= absl::FDivDuration(kMemory, measured_);
      measured_ = kMemory;
    }
  }
  last_ = std::max(last_, now);
}

double Admission::RateLocked() const {
  return measured_ < kLeastMeasured ? 0 : done_ / absl::ToDoubleSeconds(measured_);
}

double Admission::WorkAheadLocked(const Share& own) const {
  // Before its own next step comes each session has had as many turns as this one.
  double ahead = 0;
  for (const auto& [owner, share] : shares_) {
    if (share.steps == 0) continue;
    const auto turns = static_cast<double>(std::min(share.steps, own.steps + 1));
    ahead += share.work * turns / static_cast<double>(share.steps);
  }
  return ahead;
}

absl::Duration Admission::TimeForLocked(double work) const {
  if (measured_ < kLeastMeasured) return absl::ZeroDuration();
  // Where nothing has been done yet, what the workers began with may take as long again, however little work it is.
  return done_ > 0 ? measured_ * (work / done_) : measured_;
}

}  // namespace gdpcache::engine
