#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "server/rpc/call_context.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/frame_queue.h"
#include "server/rpc/prefill_codec.h"
#include "server/rpc/rpc_in_session.h"

namespace gdpcache::rpc {
namespace {

/// Reads one frame at a time and hands its bytes to the engine's call; sends what that produces, one frame at a time;
/// finishes when the call is done and, if it went well, everything has been sent.
///
/// Three threads may be here at once: a reading one (OnReadDone, and whoever the engine tells InputWanted), a writing
/// one (OnWriteDone) and the engine's (Output, Done). The mutex guards what they share and makes StartRead, StartWrite
/// and Finish one decision with the state they depend on; it is never held over a call of the engine, which calls back.
/// Everything that ends the RPC goes through the call's Cancel, so Finish comes from Done, once; only an RPC that has
/// no call yet finishes from where it is. gRPC runs OnDone when the RPC is finished and no reaction is outstanding, and
/// the engine does not come back after Done.
class PrefillStreamReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                   private engine::StreamPeer {
 public:
  PrefillStreamReactor(const DataPlane& plane, grpc::CallbackServerContext& context)
      : plane_(plane), context_(context), in_session_(context), rpc_(plane.log, "PrefillStream", context) {
    const std::lock_guard lock(mutex_);  // what has been set up is visible to whoever takes it next
    StartRead(&frame_);
  }

 private:
  void OnReadDone(bool ok) override {
    std::shared_ptr<engine::StreamedPrefill> call;
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
      call = call_;
    }
    if (!ok) return EndOfInput(call.get());
    const absl::Status status = call == nullptr ? TakeHeader(call) : TakeData(*call);
    if (!status.ok()) {
      if (call == nullptr) return FinishWithoutCall(status);
      return call->Cancel(status);  // no effect if the call ended with it
    }
    if (call->WantsInput()) ReadNext();
  }

  void OnWriteDone(bool ok) override {
    std::shared_ptr<engine::StreamedPrefill> call;
    std::int64_t sent = 0;
    {
      const std::lock_guard lock(mutex_);
      sent = queue_.Sent();
      if (!ok) queue_.Clear();
      call = call_;
    }
    if (!ok) call->Cancel(ClientGone());  // no effect after the commit
    {
      const std::lock_guard lock(mutex_);
      WriteNextLocked();
    }
    if (!ok) return;
    caller_.session->Renew(plane_.clock.Now());
    call->OutputSent(sent);
  }

  void OnCancel() override {
    std::shared_ptr<engine::StreamedPrefill> call;
    {
      // Under one lock, for the reading thread may be at the header: either it has a call to cancel, or it finds the
      // RPC finished.
      const std::lock_guard lock(mutex_);
      call = call_;
      if (call == nullptr) FinishWithoutCallLocked(ClientGone());
    }
    if (call != nullptr) call->Cancel(ClientGone());
  }

  void OnDone() override {
    { const std::lock_guard lock(mutex_); }
    delete this;
  }

  absl::Status TakeHeader(std::shared_ptr<engine::StreamedPrefill>& started) {
    const absl::StatusOr<ParsedFrame> parsed = ParseFrame(frame_, request_);
    if (!parsed.ok()) return parsed.status();
    if (parsed->kind != ParsedFrame::Kind::kHeader) {
      return absl::InvalidArgumentError("the first frame holds no request");
    }
    frame_.Clear();
    {
      const std::lock_guard lock(mutex_);
      rpc_.SetRequestId(request_.request_id());
    }
    absl::StatusOr<engine::CallContext> caller = FindCaller(plane_, context_, request_.session());
    if (!caller.ok()) return caller.status();
    caller_ = *std::move(caller);
    {
      const std::lock_guard lock(mutex_);
      rpc_.SetSession(*caller_.session);
    }
    if (absl::Status status = in_session_.Begin(*caller_.session); !status.ok()) return status;
    const auto decoded = DecodePrefill(request_, engine::TensorTransport::kStream);
    if (!decoded.ok()) return decoded.status();
    auto call = plane_.engine.PrefillStream(
        caller_, *decoded, *this, [this](absl::StatusOr<engine::PrefillResult> result) { Done(std::move(result)); });
    if (!call.ok()) return call.status();
    started = *std::move(call);
    {
      const std::lock_guard lock(mutex_);
      if (finished_) {  // cancelled in the meantime; the call has not started and is forgotten
        started = nullptr;
        return ClientGone();
      }
      call_ = started;
    }
    started->Start();
    return absl::OkStatus();
  }

  absl::Status TakeData(engine::StreamedPrefill& call) {
    caller_.session->Renew(plane_.clock.Now());
    v1::PrefillRequest second;
    const absl::Status status = DeliverFrame(frame_, second, call);
    frame_.Clear();
    return status;
  }

  void EndOfInput(engine::StreamedPrefill* call) {
    if (call == nullptr) {
      return FinishWithoutCall(absl::InvalidArgumentError("the stream ended before its first frame"));
    }
    if (context_.IsCancelled()) return call->Cancel(ClientGone());
    call->EndOfInput();
  }

  void Output(engine::OutputPiece piece) override {
    const std::lock_guard lock(mutex_);
    queue_.Push(std::move(piece));
    WriteNextLocked();
  }

  void InputWanted() override { ReadNext(); }

  void ReadNext() {
    const std::lock_guard lock(mutex_);
    if (!finished_) StartRead(&frame_);
  }

  void Done(absl::StatusOr<engine::PrefillResult> result) {
    if (!result.ok()) {
      const std::lock_guard lock(mutex_);
      finished_ = true;
      queue_.Clear();
      // A client that does not read would keep the frame in flight, and the status behind it, for ever.
      if (queue_.InFlight()) in_session_.AnswerWaits();
      return Finish(rpc_.End(result.status()));
    }
    const std::lock_guard lock(mutex_);
    plane_.metrics.Observe(call_->plan(), result->timing);
    v1::PrefillFrame last;
    DescribeResults(request_, call_->plan(), *last.mutable_response());
    EncodeResult(*result, *last.mutable_response());
    queue_.Push(last);
    timing_ = result->timing;
    complete_ = true;
    in_session_.AnswerWaits();
    WriteNextLocked();  // under the same lock: once the last frame has left, this may go at any moment
  }

  /// Sends the next frame if none is on its way, or finishes if the last has left.
  void WriteNextLocked() {
    if (finished_) return;
    if (const grpc::ByteBuffer* frame = queue_.Next(); frame != nullptr) {
      StartWrite(frame);
    } else if (complete_ && queue_.IsEmpty()) {
      finished_ = true;
      Finish(rpc_.End(timing_));
    }
  }

  void FinishWithoutCall(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    FinishWithoutCallLocked(status);
  }

  void FinishWithoutCallLocked(const absl::Status& status) {
    if (finished_) return;
    finished_ = true;
    Finish(rpc_.End(status));
  }

  const DataPlane& plane_;
  grpc::CallbackServerContext& context_;

  // Of the reading thread until the call is started, read-only then; frame_ always.
  grpc::ByteBuffer frame_;
  v1::PrefillRequest request_;
  engine::CallContext caller_;
  RpcInSession in_session_;

  std::mutex mutex_;  // guards what follows
  LoggedRpc rpc_;
  std::shared_ptr<engine::StreamedPrefill> call_;
  FrameQueue queue_;
  engine::PrefillTiming timing_;  // once it is complete
  bool complete_ = false;         // the last frame is in the queue
  bool finished_ = false;
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandlePrefillStream(const DataPlane& plane,
                                                                                 grpc::CallbackServerContext* context) {
  return new PrefillStreamReactor(plane, *context);
}

}  // namespace gdpcache::rpc
