#include "server/rpc/rpc_in_session.h"

#include <utility>

#include "absl/status/statusor.h"

namespace gdpcache::rpc {

absl::Status RpcInSession::Begin(cache::Session& session) {
  absl::StatusOr<cache::Session::Call> call = session.BeginCall([state = state_] {
    const std::lock_guard lock(state->mutex);
    state->session_ended = true;
    CancelLocked(*state);
  });
  if (!call.ok()) return call.status();
  call_ = *std::move(call);
  return absl::OkStatus();
}

void RpcInSession::AnswerWaits() {
  const std::lock_guard lock(state_->mutex);
  state_->answer_waits = true;
  CancelLocked(*state_);
}

void RpcInSession::End() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->context = nullptr;
  }
  call_.End();
}

void RpcInSession::CancelLocked(State& state) {
  if (state.answer_waits && state.session_ended && state.context != nullptr) state.context->TryCancel();
}

}  // namespace gdpcache::rpc
