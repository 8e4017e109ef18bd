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

std::vector<std::int64_t> ToVector(const google::protobuf::RepeatedField<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

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
        caller_, {.slots = ToVector(request.slots()), .layers = ToVector(request.layers())},
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

/// Takes the contents of slots; the same states and locking as a streamed prefill's receiving half.
class WriteSlotsReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  WriteSlotsReactor(const DataPlane& plane, grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : plane_(plane), context_(context), in_session_(context), rpc_(plane.log, "WriteSlots", context) {
    response = EncodeMessage(v1::WriteSlotsResponse());
    const std::lock_guard lock(mutex_);  // what has been set up is visible to whoever takes it next
    StartRead(&frame_);
  }

 private:
  void OnReadDone(bool ok) override {
    std::shared_ptr<engine::SlotWriter> call;
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
      call = call_;
    }
    if (!ok) {
      if (call == nullptr) return Fail(absl::InvalidArgumentError("the stream ended before its first frame"));
      if (context_.IsCancelled()) return call->Cancel(ClientGone());
      return call->EndOfInput();
    }
    const absl::Status status = call == nullptr ? TakeHeader(call) : TakeData(*call);
    if (!status.ok()) {
      if (call == nullptr) return Fail(status);
      return call->Cancel(status);  // no effect if the call ended with it
    }
    const std::lock_guard lock(mutex_);
    if (!finished_) StartRead(&frame_);
  }

  void OnCancel() override {
    std::shared_ptr<engine::SlotWriter> call;
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      call = call_;
    }
    if (call != nullptr) {
      call->Cancel(ClientGone());
    } else {
      Fail(ClientGone());  // the reading thread may be at the header
    }
  }

  void OnDone() override {
    { const std::lock_guard lock(mutex_); }  // behind whoever has finished
    delete this;
  }

  absl::Status TakeHeader(std::shared_ptr<engine::SlotWriter>& started) {
    v1::WriteSlotsHeader header;
    const absl::StatusOr<ParsedFrame> parsed = ParseFrame(frame_, header);
    if (!parsed.ok()) return parsed.status();
    if (parsed->kind != ParsedFrame::Kind::kHeader) {
      return absl::InvalidArgumentError("the first frame holds no header");
    }
    absl::StatusOr<engine::CallContext> caller = FindCaller(plane_, context_, header.session());
    if (!caller.ok()) return caller.status();
    caller_ = *std::move(caller);
    {
      const std::lock_guard lock(mutex_);
      rpc_.SetSession(*caller_.session);
    }
    if (absl::Status status = in_session_.Begin(*caller_.session); !status.ok()) return status;
    const v1::SlotContents& contents = header.contents();
    auto state = DecodeTensor("contents.state", contents.has_state(), contents.state());
    if (!state.ok()) return state.status();
    auto auxiliary = DecodeTensor("contents.auxiliary", contents.has_auxiliary(), contents.auxiliary());
    if (!auxiliary.ok()) return auxiliary.status();
    auto call = plane_.engine.WriteSlots(
        caller_,
        {.selection = {.slots = ToVector(contents.slots()), .layers = ToVector(contents.layers())},
         .positions = ToVector(contents.positions()),
         .state = *state,
         .auxiliary = *auxiliary},
        [this](absl::Status status) { Done(std::move(status)); });
    if (!call.ok()) return call.status();
    started = *std::move(call);
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      if (finished_) {  // cancelled in the meantime; the call has not started and is forgotten
        started = nullptr;
        return ClientGone();
      }
      call_ = started;
      cancelled = cancelled_;
    }
    if (cancelled) started->Cancel(ClientGone());
    started->Start();
    return absl::OkStatus();
  }

  absl::Status TakeData(engine::SlotWriter& call) {
    caller_.session->Renew(plane_.clock.Now());
    v1::WriteSlotsHeader second;
    return DeliverFrame(frame_, second, call);
  }

  void Done(absl::Status status) {
    if (!status.ok()) return Fail(status);
    const std::lock_guard lock(mutex_);
    finished_ = true;
    in_session_.AnswerWaits();
    Finish(rpc_.End(absl::OkStatus()));
  }

  void Fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(rpc_.End(status));
  }

  const DataPlane& plane_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer frame_;
  engine::CallContext caller_;  // of the reading thread until the call is started, read-only then
  RpcInSession in_session_;

  std::mutex mutex_;  // guards what follows
  LoggedRpc rpc_;
  std::shared_ptr<engine::SlotWriter> call_;
  bool cancelled_ = false;
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

grpc::ServerReadReactor<grpc::ByteBuffer>* HandleWriteSlots(const DataPlane& plane,
                                                            grpc::CallbackServerContext* context,
                                                            grpc::ByteBuffer* response) {
  return new WriteSlotsReactor(plane, *context, *response);
}

}  // namespace gdpcache::rpc
