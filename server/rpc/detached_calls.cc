#include "server/rpc/detached_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gdpcache::rpc {

DetachedCalls::Call& DetachedCalls::Call::operator=(Call&& other) noexcept {
  if (this != &other) {
    End();
    calls_ = other.calls_;
    entry_ = std::move(other.entry_);
  }
  return *this;
}

void DetachedCalls::Call::Progress() {
  if (entry_ == nullptr) return;
  const std::lock_guard lock(calls_->mutex_);
  entry_->moved = calls_->clock_.Now();
}

void DetachedCalls::Call::End() {
  if (const std::shared_ptr<Entry> entry = std::exchange(entry_, nullptr); entry != nullptr) calls_->End(entry);
}

DetachedCalls::DetachedCalls(const cache::Clock& clock, absl::Duration stall_timeout,
                             absl::AnyInvocable<void(absl::Time)> expect)
    : clock_(clock), stall_timeout_(stall_timeout), expect_(std::move(expect)) {}

absl::StatusOr<DetachedCalls::Call> DetachedCalls::Begin(Kind kind, absl::AnyInvocable<void(absl::Status)> cancel) {
  auto entry = std::make_shared<Entry>();
  entry->kind = kind;
  entry->cancel = std::move(cancel);
  entry->moved = clock_.Now();
  const std::lock_guard lock(mutex_);
  if (draining_) return absl::UnavailableError("the server is draining");
  entry->place = entries_.insert(entries_.end(), entry);
  if (kind == Kind::kTransfer) expect_(entry->moved + stall_timeout_);
  return Call(*this, std::move(entry));
}

absl::AnyInvocable<void(absl::Status)> DetachedCalls::TakeCancelLocked(Entry& entry) {
  return std::exchange(entry.cancel, nullptr);
}

absl::Time DetachedCalls::ExpireStalled() {
  const absl::Time now = clock_.Now();
  absl::Time next = absl::InfiniteFuture();
  std::vector<absl::AnyInvocable<void(absl::Status)>> stalled;
  {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Entry>& entry : entries_) {
      if (entry->kind != Kind::kTransfer || !entry->cancel) continue;
      const absl::Time due = entry->moved + stall_timeout_;
      if (due <= now) {
        stalled.push_back(TakeCancelLocked(*entry));
      } else {
        next = std::min(next, due);
      }
    }
  }
  for (auto& cancel : stalled) {
    cancel(absl::DeadlineExceededError(
        absl::StrCat("nothing of the snapshot has moved for ", absl::FormatDuration(stall_timeout_))));
  }
  return next;
}

void DetachedCalls::Drain(absl::AnyInvocable<void()> on_drained) {
  std::vector<absl::AnyInvocable<void(absl::Status)>> watches;
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    for (const std::shared_ptr<Entry>& entry : entries_) {
      if (entry->kind == Kind::kWatch && entry->cancel) watches.push_back(TakeCancelLocked(*entry));
    }
    if (!entries_.empty()) on_drained_ = std::exchange(on_drained, nullptr);
  }
  for (auto& cancel : watches) cancel(absl::UnavailableError("the server is draining"));
  if (on_drained) on_drained();
}

void DetachedCalls::CancelAll() {
  std::vector<absl::AnyInvocable<void(absl::Status)>> calls;
  {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Entry>& entry : entries_) {
      if (entry->cancel) calls.push_back(TakeCancelLocked(*entry));
    }
  }
  for (auto& cancel : calls) cancel(absl::UnavailableError("the server is draining"));
}

void DetachedCalls::End(const std::shared_ptr<Entry>& entry) {
  absl::AnyInvocable<void()> on_drained;
  absl::AnyInvocable<void(absl::Status)> cancel;  // may hold what must not go under the lock
  {
    const std::lock_guard lock(mutex_);
    cancel = TakeCancelLocked(*entry);
    entries_.erase(entry->place);
    if (entries_.empty()) on_drained = std::exchange(on_drained_, nullptr);
  }
  if (on_drained) on_drained();
}

}  // namespace gdpcache::rpc
