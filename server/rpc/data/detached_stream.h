#ifndef GDPCACHE_SERVER_RPC_DATA_DETACHED_STREAM_H_
#define GDPCACHE_SERVER_RPC_DATA_DETACHED_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/rpc/call_context.h"
#include "server/rpc/data/stream_reactor.h"
#include "server/rpc/detached_calls.h"
#include "server/rpc/link.h"

namespace gdpcache::rpc {

/// A stream that belongs to a cache's snapshots and to no session: a drain, and for transfers a standstill, ends it.
template <typename Reactor>
class DetachedStream : public StreamReactor<Reactor> {
 protected:
  DetachedStream(const DataPlane& plane, absl::string_view method, grpc::CallbackServerContext& context)
      : StreamReactor<Reactor>(plane, method, context), link_(std::make_shared<Link<DetachedStream>>(this)) {}

  void OnCancel() override {
    this->MeetOthers();
    Stop(ClientGone());
  }

  void OnDone() override {
    this->MeetOthers();
    link_->Cut();
    StreamReactor<Reactor>::OnDone();
  }

  /// Ends the RPC soon, whatever it is at. On any thread, without the mutex.
  virtual void Stop(const absl::Status& reason) = 0;

  absl::StatusOr<cache::SnapshotSpace> FindSpaceOf(const std::string& cache) {
    {
      const std::lock_guard lock(this->mutex_);
      this->rpc_.SetCache(cache);
    }
    return FindSpace(this->plane_, this->context_, cache);
  }

  /// Takes the RPC among the calls that a drain waits for or ends. From now on it may be stopped.
  absl::Status Track(DetachedCalls::Kind kind) {
    absl::StatusOr<DetachedCalls::Call> tracked =
        this->plane_.detached.Begin(kind, [link = link_](const absl::Status& reason) {
          link->Use([&reason](DetachedStream& stream) { stream.Stop(reason); });
        });
    if (!tracked.ok()) return tracked.status();
    const std::lock_guard lock(this->mutex_);
    tracked_ = *std::move(tracked);
    return absl::OkStatus();
  }

  const std::shared_ptr<Link<DetachedStream>> link_;
  DetachedCalls::Call tracked_;  // the mutex guards it
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_DATA_DETACHED_STREAM_H_
