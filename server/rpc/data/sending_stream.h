#ifndef GDPCACHE_SERVER_RPC_DATA_SENDING_STREAM_H_
#define GDPCACHE_SERVER_RPC_DATA_SENDING_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "server/engine/streaming.h"
#include "server/rpc/call_context.h"
#include "server/rpc/data/session_stream.h"
#include "server/rpc/frame_queue.h"

namespace gdpcache::rpc {

/// A stream that sends what its call produces, one frame at a time, and finishes when the call is done and, if it went
/// well, everything has been sent.
template <typename Reactor, typename EngineCall>
class SendingStream : public SessionStream<Reactor, EngineCall>, protected engine::StreamPeer {
 protected:
  using SessionStream<Reactor, EngineCall>::SessionStream;

  void OnWriteDone(bool ok) override {
    std::shared_ptr<EngineCall> call;
    std::int64_t sent = 0;
    {
      const std::lock_guard lock(this->mutex_);
      sent = queue_.Sent();
      if (!ok) queue_.Clear();
      call = this->call_;
    }
    if (!ok) call->Cancel(ClientGone());  // no effect after the commit
    {
      const std::lock_guard lock(this->mutex_);
      WriteNextLocked();
    }
    if (!ok) return;
    this->Renew();
    call->OutputSent(sent);
  }

  void Output(engine::OutputPiece piece) override {
    const std::lock_guard lock(this->mutex_);
    queue_.Push(std::move(piece));
    WriteNextLocked();
  }

  void InputWanted() override {}

  /// The call went well and all that it produced is in the queue. Once the last frame has left, this object may go at
  /// any moment.
  void CompleteLocked() {
    complete_ = true;
    this->in_session_.AnswerWaits();
    WriteNextLocked();
  }

  void FailLocked(const absl::Status& status) override {
    if (this->finished_) return;
    queue_.Clear();
    // A client that does not read would keep the frame in flight, and the status behind it, for ever.
    if (queue_.InFlight()) this->in_session_.AnswerWaits();
    SessionStream<Reactor, EngineCall>::FailLocked(status);
  }

  /// What the RPC finishes with when all has been sent.
  virtual grpc::Status FinalStatusLocked() { return this->rpc_.End(absl::OkStatus()); }

  /// Sends the next frame if none is on its way, or finishes if the last has left.
  void WriteNextLocked() {
    if (this->finished_) return;
    if (const grpc::ByteBuffer* frame = queue_.Next(); frame != nullptr) {
      this->StartWrite(frame);
    } else if (complete_ && queue_.IsEmpty()) {
      this->FinishLocked(FinalStatusLocked());
    }
  }

  FrameQueue queue_;  // the mutex guards it

 private:
  bool complete_ = false;  // likewise; the last frame is in the queue
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_DATA_SENDING_STREAM_H_
