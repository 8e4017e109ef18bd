#include <memory>
#include <mutex>
#include <utility>

#include "server/rpc/call_context.h"
#include "server/rpc/data/sending_stream.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/message_memory.h"
#include "server/rpc/prefill_codec.h"

namespace gdpcache::rpc {
namespace {

using Base = SendingStream<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, engine::StreamedPrefill>;

/// Reads one frame at a time and hands its bytes to the engine's call, beside what every sending stream does.
///
/// Three threads may be here at once: a reading one (OnReadDone, and whoever the engine tells InputWanted), a writing
/// one (OnWriteDone) and the engine's (Output, Done).
class PrefillStreamReactor final : public Base {
 public:
  PrefillStreamReactor(const DataPlane& plane, grpc::CallbackServerContext& context)
      : Base(plane, "PrefillStream", context) {
    const std::lock_guard lock(mutex_);  // what has been set up is visible to whoever takes it next
    StartRead(&frame_);
  }

 private:
  void OnReadDone(bool ok) override {
    std::shared_ptr<engine::StreamedPrefill> call;
    grpc::ByteBuffer frame;  // not kept until the next one has come
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
      call = call_;
      frame.Swap(&frame_);
    }
    if (!ok) return EndOfInput(call.get());
    const absl::Status status = call == nullptr ? TakeHeader(frame, call) : TakeData(frame, *call);
    if (!status.ok()) {
      if (call == nullptr) return Fail(status);
      return call->Cancel(status);  // no effect if the call ended with it
    }
    if (call->WantsInput()) ReadNext();
  }

  absl::Status TakeHeader(grpc::ByteBuffer& frame, std::shared_ptr<engine::StreamedPrefill>& started) {
    const absl::StatusOr<ParsedFrame> parsed = ParseFrame(frame, request_);
    if (!parsed.ok()) return parsed.status();
    if (parsed->kind != ParsedFrame::Kind::kHeader) {
      return absl::InvalidArgumentError("the first frame holds no request");
    }
    frame.Clear();
    {
      const std::lock_guard lock(mutex_);
      rpc_.SetRequestId(request_.request_id());
    }
    if (absl::Status status = Enter(request_.session(), Trim(request_)); !status.ok()) return status;
    const auto decoded = DecodePrefill(request_, engine::TensorTransport::kStream);
    if (!decoded.ok()) return decoded.status();
    auto call = plane_.engine.PrefillStream(
        caller_, *decoded, *this, [this](absl::StatusOr<engine::PrefillResult> result) { Done(std::move(result)); });
    if (!call.ok()) return call.status();
    if (absl::Status status = StartCall(*call); !status.ok()) return status;
    started = *std::move(call);
    return absl::OkStatus();
  }

  absl::Status TakeData(grpc::ByteBuffer& frame, engine::StreamedPrefill& call) {
    Renew();
    v1::PrefillRequest second;
    return DeliverFrame(frame, second, call);
  }

  void EndOfInput(engine::StreamedPrefill* call) {
    if (call == nullptr) {
      return Fail(absl::InvalidArgumentError("the stream ended before its first frame"));
    }
    if (context_.IsCancelled()) return call->Cancel(ClientGone());
    call->EndOfInput();
  }

  void InputWanted() override { ReadNext(); }

  void ReadNext() {
    const std::lock_guard lock(mutex_);
    if (!finished_) StartRead(&frame_);
  }

  void Done(absl::StatusOr<engine::PrefillResult> result) {
    if (!result.ok()) return Fail(result.status());
    const std::lock_guard lock(mutex_);
    plane_.metrics.Observe(call_->plan(), result->timing);
    v1::PrefillFrame last;
    DescribeResults(request_, call_->plan(), *last.mutable_response());
    EncodeResult(*result, *last.mutable_response());
    queue_.Push(last);
    timing_ = result->timing;
    CompleteLocked();
  }

  grpc::Status FinalStatusLocked() override { return rpc_.End(timing_); }

  v1::PrefillRequest request_;  // of the reading thread until the call is started, read-only then

  grpc::ByteBuffer frame_;        // the mutex guards it, but for gRPC
  engine::PrefillTiming timing_;  // once it is complete; the mutex guards it
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandlePrefillStream(const DataPlane& plane,
                                                                                 grpc::CallbackServerContext* context) {
  return new PrefillStreamReactor(plane, *context);
}

}  // namespace gdpcache::rpc
