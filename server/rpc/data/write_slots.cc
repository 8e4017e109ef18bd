#include <memory>
#include <mutex>
#include <utility>

#include "gdpcache/v1/session.pb.h"
#include "server/rpc/call_context.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/prefill_codec.h"
#include "server/rpc/rpc_in_session.h"

namespace gdpcache::rpc {
namespace {

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
      // Under one lock, for the reading thread may be at the header: either it has a call to cancel, or it finds the
      // RPC finished.
      const std::lock_guard lock(mutex_);
      call = call_;
      if (call == nullptr) FailLocked(ClientGone());
    }
    if (call != nullptr) call->Cancel(ClientGone());
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
    auto call = plane_.engine.WriteSlots(caller_,
                                         {.selection = {.slots = {contents.slots().begin(), contents.slots().end()},
                                                        .layers = {contents.layers().begin(), contents.layers().end()}},
                                          .positions = {contents.positions().begin(), contents.positions().end()},
                                          .state = *state,
                                          .auxiliary = *auxiliary},
                                         [this](absl::Status status) { Done(std::move(status)); });
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
    FailLocked(status);
  }

  void FailLocked(const absl::Status& status) {
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
  bool finished_ = false;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* HandleWriteSlots(const DataPlane& plane,
                                                            grpc::CallbackServerContext* context,
                                                            grpc::ByteBuffer* response) {
  return new WriteSlotsReactor(plane, *context, *response);
}

}  // namespace gdpcache::rpc
