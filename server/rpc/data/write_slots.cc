#include <memory>
#include <mutex>
#include <utility>

#include "gdpcache/v1/session.pb.h"
#include "server/rpc/call_context.h"
#include "server/rpc/data/session_stream.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/message_memory.h"
#include "server/rpc/prefill_codec.h"

namespace gdpcache::rpc {
namespace {

using Base = SessionStream<grpc::ServerReadReactor<grpc::ByteBuffer>, engine::SlotWriter>;

/// Takes the contents of slots.
class WriteSlotsReactor final : public Base {
 public:
  WriteSlotsReactor(const DataPlane& plane, grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : Base(plane, "WriteSlots", context) {
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

  absl::Status TakeHeader(std::shared_ptr<engine::SlotWriter>& started) {
    v1::WriteSlotsHeader header;
    const absl::StatusOr<ParsedFrame> parsed = ParseFrame(frame_, header);
    if (!parsed.ok()) return parsed.status();
    if (parsed->kind != ParsedFrame::Kind::kHeader) {
      return absl::InvalidArgumentError("the first frame holds no header");
    }
    if (absl::Status status = Enter(header.session(), Trim(header)); !status.ok()) return status;
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
                                         [this](const absl::Status& status) { Done(status); });
    if (!call.ok()) return call.status();
    if (absl::Status status = StartCall(*call); !status.ok()) return status;
    started = *std::move(call);
    return absl::OkStatus();
  }

  absl::Status TakeData(engine::SlotWriter& call) {
    Renew();
    v1::WriteSlotsHeader second;
    return DeliverFrame(frame_, second, call);
  }

  void Done(const absl::Status& status) {
    if (!status.ok()) return Fail(status);
    const std::lock_guard lock(mutex_);
    in_session_.AnswerWaits();
    FinishLocked(rpc_.End(absl::OkStatus()));
  }

  grpc::ByteBuffer frame_;  // of the reading thread
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* HandleWriteSlots(const DataPlane& plane,
                                                            grpc::CallbackServerContext* context,
                                                            grpc::ByteBuffer* response) {
  return new WriteSlotsReactor(plane, *context, *response);
}

}  // namespace gdpcache::rpc
