#ifndef GDPCACHE_SERVER_RPC_DATA_SESSION_STREAM_H_
#define GDPCACHE_SERVER_RPC_DATA_SESSION_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/engine/call.h"
#include "server/rpc/call_context.h"
#include "server/rpc/data/stream_reactor.h"
#include "server/rpc/rpc_in_session.h"

namespace gdpcache::rpc {

/// A stream that is one call of the engine in a session. From the call's start on everything that ends the RPC goes
/// through the call's Cancel, so that it is finished by the call's end, once; the engine does not come back after that.
template <typename Reactor, typename EngineCall>
class SessionStream : public StreamReactor<Reactor> {
 protected:
  SessionStream(const DataPlane& plane, absl::string_view method, grpc::CallbackServerContext& context)
      : StreamReactor<Reactor>(plane, method, context), in_session_(context) {}

  void OnCancel() override {
    std::shared_ptr<EngineCall> call;
    {
      // Under one lock, for another thread may be about to start the call: either there is one to cancel, or the other
      // finds the RPC finished.
      const std::lock_guard lock(this->mutex_);
      call = call_;
      if (call == nullptr) this->FailLocked(ClientGone());
    }
    if (call != nullptr) call->Cancel(ClientGone());
  }

  /// Finds the session, charges the `bytes` that the request takes as long as the RPC lasts, and takes the RPC among
  /// the session's running calls.
  absl::Status Enter(const std::string& session, std::int64_t bytes) {
    absl::StatusOr<engine::CallContext> caller = FindCaller(this->plane_, this->context_, session);
    if (!caller.ok()) return caller.status();
    caller_ = *std::move(caller);
    {
      const std::lock_guard lock(this->mutex_);
      this->rpc_.SetSession(*caller_.session);
    }
    auto account = ChargeRequest(this->plane_.engine, bytes, caller_.session->tenant_use());
    if (!account.ok()) return account.status();
    account_ = *std::move(account);
    return in_session_.Begin(*caller_.session);
  }

  /// Starts the engine's call; CANCELLED if the RPC was finished meanwhile, and the call is forgotten.
  absl::Status StartCall(std::shared_ptr<EngineCall> call) {
    {
      const std::lock_guard lock(this->mutex_);
      if (this->finished_) return ClientGone();
      call_ = call;
    }
    call->Start();
    return absl::OkStatus();
  }

  /// The client is alive.
  void Renew() { caller_.session->Renew(this->plane_.clock.Now()); }

  // Fixed before the call starts.
  engine::CallContext caller_;
  std::shared_ptr<engine::StagingAccount> account_;
  RpcInSession in_session_;
  std::shared_ptr<EngineCall> call_;  // the mutex guards it
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_DATA_SESSION_STREAM_H_
