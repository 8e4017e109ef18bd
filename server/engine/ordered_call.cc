#include "server/engine/ordered_call.h"

#include "absl/strings/str_cat.h"
#include "server/cache/clock.h"
#include "server/cache/errors.h"
#include "server/engine/overload.h"
#include "server/engine/slot_memory.h"

namespace gdpcache::engine {
namespace {

constexpr absl::Duration kRetryAfter = absl::Milliseconds(100);
constexpr std::int64_t kSmallBytes = std::int64_t{512} << 10;  // copied sooner than a worker wakes up

}  // namespace

void OrderedCall::Start() {
  const std::shared_ptr<OrderedCall> self = shared_from_this();
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kStarting;
  }
  absl::StatusOr<cache::Session::Call> session_call = context_.session->BeginCall([weak = weak_from_this()] {
    if (const auto call = weak.lock()) {
      // The detail tells it from gRPC's own CANCELLED, which a server at its end answers.
      call->Cancel(cache::ResourceError(absl::StatusCode::kCancelled, "session", call->context().session->id(),
                                        "the session has ended"));
    }
  });
  if (!session_call.ok()) return Conclude(session_call.status(), false);
  session_call_ = *std::move(session_call);
  if (const absl::Status status = Admit(); !status.ok()) return Conclude(status, false);
  Prepare();
  Lock lock(mutex_);
  state_ = State::kPreparing;
  AdvanceLocked(std::move(lock), true);
}

absl::Status OrderedCall::Admit() {
  cache::TenantUse* const tenant = context_.session->tenant_use().get();
  if (!IsCancellable()) {
    environment_.admission.BeginInAnyCase(owner());
    if (tenant != nullptr) tenant->calls.Take(1);
  } else if (tenant != nullptr && !tenant->calls.TryTake(1)) {
    return Overloaded(absl::StrCat("the tenant has ", cache::Counted(tenant->calls.used(), "call"),
                                   " under way; one tenant may have at most ", tenant->calls.limit()),
                      kRetryAfter);
  } else if (absl::Status status = environment_.admission.Begin(owner(), cache::SteadyNow()); !status.ok()) {
    if (tenant != nullptr) tenant->calls.GiveBack(1);
    return status;
  }
  admitted_ = true;
  return absl::OkStatus();
}

void OrderedCall::Prepared(absl::Status status, bool may_run_here) {
  Lock lock(mutex_);
  if (EndedLocked().has_value()) return;
  prepared_ = true;
  if (!status.ok()) failure_ = std::move(status);
  AdvanceLocked(std::move(lock), may_run_here);
}

void OrderedCall::TakePlaces(bool may_run_here) {
  {
    std::unique_lock arrival(cache().arrivals());
    const absl::StatusOr<Places> places = Arrive();
    if (!places.ok()) {
      arrival.unlock();
      return Conclude(places.status(), false);
    }
    claim_ = cache().sequencer().Enqueue(places->layers, places->slots, [self = shared_from_this()] { self->Ready(); });
  }
  Lock lock(mutex_);
  state_ = State::kActive;
  AdvanceLocked(std::move(lock), may_run_here);
}

void OrderedCall::Ready() {
  Lock lock(mutex_);
  ready_ = true;
  AdvanceLocked(std::move(lock), false);
}

void OrderedCall::Cancel(absl::Status reason) {
  if (!IsCancellable()) return;
  Lock lock(mutex_);
  FailLocked(std::move(lock), std::move(reason));
}

std::optional<absl::Status> OrderedCall::EndedLocked() const {
  if (failure_.has_value()) return failure_;
  if (state_ == State::kOver) return absl::CancelledError("the call is over");
  return std::nullopt;
}

void OrderedCall::FailLocked(Lock lock, absl::Status reason) {
  if (state_ == State::kOver || committing_ || failure_.has_value()) return;
  failure_ = std::move(reason);
  AdvanceLocked(std::move(lock), false);
}

void OrderedCall::AdvanceLocked(Lock lock, bool may_run_here) {
  if ((state_ != State::kPreparing && state_ != State::kActive) || busy_) return;
  if (failure_.has_value()) {
    const bool arrived = state_ == State::kActive;
    state_ = State::kOver;
    absl::Status status = *failure_;
    lock.unlock();
    return Conclude(std::move(status), arrived);
  }
  if (state_ == State::kPreparing) {
    if (!prepared_) return;
    state_ = State::kArriving;
    lock.unlock();
    return TakePlaces(may_run_here);
  }
  if (!ready_ || !HasStep()) return;
  busy_ = true;
  lock.unlock();
  const Executor::Here here = may_run_here ? MayRunHere() : Executor::Here::kNever;
  MergeableTask* const mergeable = AsMergeable(here);
  submitted_ = here == Executor::Here::kAlways ? 0 : StepWork();
  if (submitted_ > 0) environment_.admission.StepSubmitted(owner(), submitted_, cache::SteadyNow());
  if (mergeable != nullptr) {
    return environment_.executor.Submit(owner(), std::shared_ptr<MergeableTask>(shared_from_this(), mergeable), here);
  }
  environment_.executor.Submit(
      owner(), [self = shared_from_this()](kernels::Stream& stream) { self->StepDone(self->Step(stream)); }, here);
}

Executor::Here OrderedCall::HereIfFew(std::int64_t slots) const {
  const bool are_few = slots <= kSmallBytes / SlotBytes(cache().geometry());
  return are_few && environment_.device_staging == nullptr ? Executor::Here::kAlways : Executor::Here::kNever;
}

absl::StatusOr<bool> OrderedCall::Step(kernels::Stream& stream) {
  if (UsesStream()) {
    if (absl::Status status = JoinEarlierCalls(stream); !status.ok()) return status;
  }
  return RunStep(stream);
}

absl::Status OrderedCall::JoinEarlierCalls(kernels::Stream& stream) const {
  for (const std::shared_ptr<kernels::Event>& work : claim_.Unfinished()) {
    if (absl::Status status = environment_.backend.Await(*work, stream); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void OrderedCall::HandOver(std::shared_ptr<kernels::Event> work) { claim_.HandOver(std::move(work)); }

void OrderedCall::StepDone(const absl::StatusOr<bool>& complete) {
  if (absl::IsUnavailable(complete.status())) environment_.on_device_lost(complete.status());
  Lock lock(mutex_);
  busy_ = false;
  if (submitted_ > 0) environment_.admission.StepDone(owner(), submitted_, cache::SteadyNow());
  if (complete.ok() && *complete) {
    state_ = State::kOver;
    lock.unlock();
    return Conclude(absl::OkStatus(), true);
  }
  if (!complete.ok() && !failure_.has_value()) failure_ = complete.status();
  AdvanceLocked(std::move(lock), false);
}

absl::Status OrderedCall::BeginCommit() {
  const std::lock_guard lock(mutex_);
  if (failure_.has_value()) return *failure_;
  if (IsCancellable() && cache::SteadyNow() >= context_.deadline) {
    return absl::DeadlineExceededError("the deadline passed before the call could be committed");
  }
  committing_ = true;
  return absl::OkStatus();
}

void OrderedCall::Conclude(absl::Status status, bool arrived) {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kOver;
  }
  if (arrived && !status.ok()) Withdraw();
  claim_.Release();
  LetGo();
  if (admitted_) {
    environment_.admission.End(owner());
    if (cache::TenantUse* const tenant = context_.session->tenant_use().get()) tenant->calls.GiveBack(1);
  }
  session_call_.End();
  Finish(std::move(status));
}

}  // namespace gdpcache::engine
