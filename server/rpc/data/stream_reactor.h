#ifndef GDPCACHE_SERVER_RPC_DATA_STREAM_REACTOR_H_
#define GDPCACHE_SERVER_RPC_DATA_STREAM_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <mutex>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/rpc/call_log.h"
#include "server/rpc/data_plane.h"

namespace gdpcache::rpc {

/// One RPC in progress whose frames flow: what all of them share. `Reactor` is one of gRPC's for streams. It deletes
/// itself when the RPC is finished and no reaction is outstanding.
///
/// Several threads may be in it at once: gRPC's and the engine's. The mutex guards what they share and makes each
/// operation of gRPC's that they start one decision with the state that it depends on; it is never held over a call of
/// the engine, which calls back. Functions named ...Locked want it held. Whatever gRPC calls begins with it, even if
/// only by MeetOthers: ThreadSanitizer cannot see the order that gRPC keeps, and so takes what the constructor wrote,
/// or the last reaction, for somebody else's doing at the same time.
template <typename Reactor>
class StreamReactor : public Reactor {
 protected:
  StreamReactor(const DataPlane& plane, absl::string_view method, grpc::CallbackServerContext& context)
      : plane_(plane), context_(context), rpc_(plane.log, method, context) {
    // gRPC makes the map of them when somebody asks first. Later that may be two threads at once: the one that reads
    // the first frame wants to know who calls, the one that ends the RPC its id.
    static_cast<void>(context.client_metadata());
  }

  void OnDone() override {
    MeetOthers();
    delete this;
  }

  void MeetOthers() { const std::lock_guard lock(mutex_); }

  /// Finishes the RPC with an error, unless it is finished.
  void Fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    FailLocked(status);
  }
  virtual void FailLocked(const absl::Status& status) {
    if (!finished_) FinishLocked(rpc_.End(status));
  }

  void FinishLocked(const grpc::Status& status) {
    finished_ = true;
    this->Finish(status);
  }

  const DataPlane& plane_;
  grpc::CallbackServerContext& context_;

  std::mutex mutex_;  // guards what follows
  LoggedRpc rpc_;
  bool finished_ = false;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_DATA_STREAM_REACTOR_H_
