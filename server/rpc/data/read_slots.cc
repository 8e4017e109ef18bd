#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gdpcache/v1/session.pb.h"
#include "server/rpc/call_context.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/frame_queue.h"
#include "server/rpc/prefill_codec.h"
#include "server/rpc/rpc_in_session.h"

namespace gdpcache::rpc {
namespace {

/// Sends the contents of slots; the same states and locking as a streamed prefill's sending half.
class ReadSlotsReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, private engine::StreamPeer {
 public:
  ReadSlotsReactor(const DataPlane& plane, grpc::CallbackServerContext& context)
      : plane_(plane), context_(context), in_session_(context), rpc_(plane.log, "ReadSlots", context) {}

  /// Ends with Finish, maybe on another thread and before it returns.
  void Begin(const grpc::ByteBuffer& bytes) {
    v1::ReadSlotsRequest request;
    if (absl::Status status = ParseMessage(bytes, request); !status.ok()) return Fail(status);
    absl::StatusOr<engine::CallContext> caller = FindCaller(plane_, context_, request.session());
    if (!caller.ok()) return Fail(caller.status());
    caller_ = *std::move(caller);
    {
      const std::lock_guard lock(mutex_);
      rpc_.SetSession(*caller_.session);
    }
    if (absl::Status status = in_session_.Begin(*caller_.session); !status.ok()) return Fail(status);
    auto call = plane_.engine.ReadSlots(
        caller_,
        {.slots = {request.slots().begin(), request.slots().end()},
         .layers = {request.layers().begin(), request.layers().end()}},
        [this](engine::SlotContents contents) { Describe(contents); }, *this,
        [this](absl::Status status) { Done(std::move(status)); });
    if (!call.ok()) return Fail(call.status());
    const std::shared_ptr<engine::SlotReader> started = *std::move(call);
    {
      const std::lock_guard lock(mutex_);
      call_ = started;
    }
    started->Start();
  }

 private:
  void OnWriteDone(bool ok) override {
    std::shared_ptr<engine::SlotReader> call;
    std::int64_t sent = 0;
    {
      const std::lock_guard lock(mutex_);
      sent = queue_.Sent();
      if (!ok) queue_.Clear();
      call = call_;
    }
    if (!ok) call->Cancel(ClientGone());
    {
      const std::lock_guard lock(mutex_);
      WriteNextLocked();
    }
    if (!ok) return;
    caller_.session->Renew(plane_.clock.Now());
    call->OutputSent(sent);
  }

  void OnCancel() override {
    std::shared_ptr<engine::SlotReader> call;
    {
      const std::lock_guard lock(mutex_);
      call = call_;
    }
    if (call != nullptr) call->Cancel(ClientGone());
  }

  void OnDone() override {
    { const std::lock_guard lock(mutex_); }  // behind whoever has finished
    delete this;
  }

  void Describe(const engine::SlotContents& contents) {
    const cache::Geometry& geometry = caller_.session->cache()->geometry();
    const std::vector<std::int64_t>& slots = contents.selection.slots;
    const std::vector<std::int64_t>& layers = contents.selection.layers;
    v1::ReadSlotsFrame first;
    v1::SlotContents& header = *first.mutable_contents();
    header.mutable_slots()->Add(slots.begin(), slots.end());
    header.mutable_layers()->Add(layers.begin(), layers.end());
    header.mutable_positions()->Add(contents.positions.begin(), contents.positions.end());
    const auto describe = [&](engine::ElementType dtype, std::initializer_list<std::int64_t> rest, v1::Tensor& tensor) {
      tensor.set_dtype(EncodeDataType(dtype));
      tensor.add_shape(static_cast<std::int64_t>(slots.size()));
      tensor.add_shape(static_cast<std::int64_t>(layers.size()));
      for (const std::int64_t dimension : rest) tensor.add_shape(dimension);
    };
    describe(engine::ElementTypeOf(geometry.state_dtype), {geometry.heads, geometry.key_dim, geometry.value_dim},
             *header.mutable_state());
    if (geometry.auxiliary_bytes > 0) {
      describe(engine::ElementType::kUint8, {geometry.auxiliary_bytes}, *header.mutable_auxiliary());
    }
    const std::lock_guard lock(mutex_);
    queue_.Push(first);
    WriteNextLocked();
  }

  void Output(engine::OutputPiece piece) override {
    const std::lock_guard lock(mutex_);
    queue_.Push(std::move(piece));
    WriteNextLocked();
  }

  void InputWanted() override {}  // there is none

  void Done(absl::Status status) {
    if (!status.ok()) return Fail(status);
    const std::lock_guard lock(mutex_);
    complete_ = true;
    in_session_.AnswerWaits();
    WriteNextLocked();  // under the same lock: once the last frame has left, this may go at any moment
  }

  void WriteNextLocked() {
    if (finished_) return;
    if (const grpc::ByteBuffer* frame = queue_.Next(); frame != nullptr) {
      StartWrite(frame);
    } else if (complete_ && queue_.IsEmpty()) {
      finished_ = true;
      Finish(rpc_.End(absl::OkStatus()));
    }
  }

  void Fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    queue_.Clear();
    // A client that does not read would keep the frame in flight, and the status behind it, for ever.
    if (queue_.InFlight()) in_session_.AnswerWaits();
    Finish(rpc_.End(status));
  }

  const DataPlane& plane_;
  grpc::CallbackServerContext& context_;
  engine::CallContext caller_;  // fixed before the call starts
  RpcInSession in_session_;

  std::mutex mutex_;  // guards what follows
  LoggedRpc rpc_;
  std::shared_ptr<engine::SlotReader> call_;
  FrameQueue queue_;
  bool complete_ = false;
  bool finished_ = false;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleReadSlots(const DataPlane& plane,
                                                            grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request) {
  auto* const reactor = new ReadSlotsReactor(plane, *context);
  reactor->Begin(*request);
  return reactor;
}

}  // namespace gdpcache::rpc
