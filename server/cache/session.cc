#include "server/cache/session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

constexpr absl::Duration kRetrySlotsAfter = absl::Seconds(1);

}  // namespace

void Session::Call::End() {
  if (session_ == nullptr) return;
  std::shared_ptr<Session> session = std::move(session_);
  absl::AnyInvocable<void()> cancel;
  absl::AnyInvocable<void()> on_drained;
  {
    const std::lock_guard lock(session->mutex_);
    cancel = std::exchange(*entry_, nullptr);
    session->calls_.erase(entry_);
    if (session->ended_ && session->calls_.empty()) on_drained = std::exchange(session->on_drained_, nullptr);
  }
  session.reset();
  if (on_drained) on_drained();
}

absl::Time Session::expires_at() const {
  const std::lock_guard lock(mutex_);
  return expires_at_;
}

absl::Status Session::TakeSlots(std::int64_t count) {
  if (tenant_slots_ == nullptr) return absl::OkStatus();
  if (!tenant_slots_->TryTake(count)) {
    return Exhausted(absl::StrCat("count is ", count, "; the tenant holds ", tenant_slots_->used(), " of the ",
                                  tenant_slots_->limit(), " slots that it may hold"),
                     kRetrySlotsAfter);
  }
  const std::lock_guard lock(mutex_);
  counted_slots_ += count;
  return absl::OkStatus();
}

void Session::GiveBackSlots(std::int64_t count) {
  if (tenant_slots_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  counted_slots_ -= count;
  tenant_slots_->GiveBack(count);
}

void Session::GiveBackAllSlots() {
  if (tenant_slots_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  tenant_slots_->GiveBack(std::exchange(counted_slots_, 0));
}

absl::StatusOr<Session::Call> Session::BeginCall(absl::AnyInvocable<void()> cancel) {
  const std::lock_guard lock(mutex_);
  if (ended_) return refusal_;
  calls_.push_front(std::move(cancel));
  return Call(shared_from_this(), calls_.begin());
}

void Session::Renew(absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (!ended_) expires_at_ = std::max(expires_at_, now + ttl_);
}

bool Session::End(absl::AnyInvocable<void()> on_drained) {
  const std::shared_ptr<Session> self = shared_from_this();  // on_drained may hold the last other reference
  absl::Status refusal = ResourceError(absl::StatusCode::kNotFound, "session", id_, "the session has ended");
  if (!EndWith(std::move(refusal), std::move(on_drained))) return false;
  CancelCalls();
  return true;
}

bool Session::Drain(absl::AnyInvocable<void()> on_drained) {
  return EndWith(absl::UnavailableError("the server is draining"), std::move(on_drained));
}

bool Session::EndWith(absl::Status refusal, absl::AnyInvocable<void()> on_drained) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    ended_ = true;
    refusal_ = std::move(refusal);
    if (!calls_.empty()) on_drained_ = std::exchange(on_drained, nullptr);
  }
  if (on_drained) on_drained();
  return true;
}

void Session::CancelCalls() {
  std::vector<absl::AnyInvocable<void()>> cancels;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) return;
    for (absl::AnyInvocable<void()>& cancel : calls_) {
      if (cancel) cancels.push_back(std::exchange(cancel, nullptr));
    }
  }
  for (absl::AnyInvocable<void()>& cancel : cancels) cancel();
}

}  // namespace gdpcache::cache
