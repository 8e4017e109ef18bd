#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "gdpcache/v1/snapshot.pb.h"
#include "server/cache/errors.h"
#include "server/rpc/call_context.h"
#include "server/rpc/data/detached_stream.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/payload_codec.h"
#include "server/rpc/snapshot_codec.h"

namespace gdpcache::rpc {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);

/// Takes in a snapshot's file and stores it. One thread reads; the engine's call, which stores, begins when it is done.
class WriteSnapshotReactor final : public DetachedStream<grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  WriteSnapshotReactor(const DataPlane& plane, grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : DetachedStream(plane, "WriteSnapshot", context), response_(response) {
    response_ = EncodeMessage(v1::WriteSnapshotResponse());
    const std::lock_guard lock(mutex_);  // what has been set up is visible to whoever takes it next
    StartRead(&frame_);
  }

 private:
  void OnReadDone(bool ok) override {
    bool has_header = false;
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
      has_header = has_header_;
    }
    if (!ok) {
      if (context_.IsCancelled()) return Stop(ClientGone());
      return has_header ? Store() : Stop(absl::InvalidArgumentError("the stream ended before its first frame"));
    }
    const absl::Status status = has_header ? TakePayload() : TakeHeader();
    frame_.Clear();
    if (!status.ok()) return Stop(status);
    const std::lock_guard lock(mutex_);
    tracked_.Progress();
    if (!finished_) StartRead(&frame_);
  }

  absl::Status TakeHeader() {
    v1::WriteSnapshotHeader header;
    const absl::StatusOr<PayloadFrame> parsed = ParsePayloadFrame(frame_, header);
    if (!parsed.ok()) return parsed.status();
    if (parsed->kind != PayloadFrame::Kind::kHeader) {
      return absl::InvalidArgumentError("the first frame holds no header");
    }
    absl::StatusOr<cache::SnapshotSpace> space = FindSpaceOf(header.cache());
    if (!space.ok()) return space.status();
    space_ = *std::move(space);
    if (absl::Status status = Track(DetachedCalls::Kind::kTransfer); !status.ok()) return status;
    absl::StatusOr<SnapshotUploads::Transfer> transfer = plane_.uploads.Begin(space_, header);
    if (!transfer.ok()) return transfer.status();
    transfer_ = *std::move(transfer);
    const std::lock_guard lock(mutex_);
    has_header_ = true;
    return absl::OkStatus();
  }

  absl::Status TakePayload() {
    v1::WriteSnapshotHeader second;
    const absl::StatusOr<PayloadFrame> parsed = ParsePayloadFrame(frame_, second);
    if (!parsed.ok()) return parsed.status();
    if (parsed->kind != PayloadFrame::Kind::kPayload) {
      return absl::InvalidArgumentError("a frame behind the first holds no payload");
    }
    return ReadPayload(frame_, *parsed, [this](absl::Span<const std::byte> bytes) { return transfer_.Take(bytes); });
  }

  void Store() {
    absl::StatusOr<SnapshotUploads::Transfer::Complete> complete = transfer_.Finish();
    if (!complete.ok()) return Stop(complete.status());
    absl::StatusOr<std::shared_ptr<engine::Call>> call =
        plane_.engine.WriteSnapshot(space_, std::move(complete->key), std::move(complete->contents),
                                    [this](absl::StatusOr<cache::SnapshotOutcome> outcome) { Stored(outcome); });
    if (!call.ok()) return Stop(call.status());
    const std::shared_ptr<engine::Call> started = *call;
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;  // stopped meanwhile; the call has not started and is forgotten
      call_ = started;
    }
    started->Start();
  }

  void Stored(const absl::StatusOr<cache::SnapshotOutcome>& outcome) {
    absl::Status status = outcome.status();
    if (status.ok() && outcome->result == cache::SnapshotResult::kNoSpace) {
      status = cache::Exhausted(outcome->message, kRetryAfter);
    }
    const std::lock_guard lock(mutex_);
    call_ = nullptr;
    if (!status.ok()) return FailLocked(status);
    v1::WriteSnapshotResponse response;
    *response.mutable_outcome() = EncodeOutcome(*outcome);
    response_ = EncodeMessage(response);
    FinishLocked(rpc_.End(absl::OkStatus()));
  }

  void Stop(const absl::Status& reason) override {
    std::shared_ptr<engine::Call> call;
    {
      const std::lock_guard lock(mutex_);
      call = call_;
      if (call == nullptr) return FailLocked(reason);
    }
    call->Cancel(reason);
  }

  grpc::ByteBuffer& response_;

  // Of the reading thread.
  grpc::ByteBuffer frame_;
  cache::SnapshotSpace space_;
  SnapshotUploads::Transfer transfer_;

  // The mutex guards what follows.
  bool has_header_ = false;
  std::shared_ptr<engine::Call> call_;  // while it runs
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* HandleWriteSnapshot(const DataPlane& plane,
                                                               grpc::CallbackServerContext* context,
                                                               grpc::ByteBuffer* response) {
  return new WriteSnapshotReactor(plane, *context, *response);
}

}  // namespace gdpcache::rpc
