#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gdpcache/v1/snapshot.pb.h"
#include "server/cache/errors.h"
#include "server/cache/snapshots/snapshot_file.h"
#include "server/rpc/call_context.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/frame_queue.h"
#include "server/rpc/link.h"
#include "server/rpc/payload_codec.h"
#include "server/rpc/snapshot_codec.h"

namespace gdpcache::rpc {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);

/// A snapshot as a file whose bytes lie in several places.
struct SnapshotFile {
  std::string header;
  engine::SnapshotContents contents;
  std::int64_t size = 0;

  std::vector<kernels::ByteRange> Ranges(std::int64_t offset, std::int64_t count) {
    std::vector<kernels::ByteRange> ranges;
    const auto header_bytes = static_cast<std::int64_t>(header.size());
    if (offset < header_bytes) {
      const std::int64_t taken = std::min(count, header_bytes - offset);
      ranges.push_back({header.data() + offset, static_cast<std::size_t>(taken)});
      offset += taken;
      count -= taken;
    }
    if (count > 0) cache::AppendDataRanges(contents.parts, offset - header_bytes, count, ranges);
    return ranges;
  }
};

/// Sends a snapshot's file: fetched by a call of the engine, then frame by frame. While the engine's call runs,
/// whatever ends the RPC goes through that call, which then finishes it; afterwards it is finished from where it is.
class ReadSnapshotReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  ReadSnapshotReactor(const DataPlane& plane, grpc::CallbackServerContext& context)
      : plane_(plane),
        context_(context),
        link_(std::make_shared<Link<ReadSnapshotReactor>>(this)),
        rpc_(plane.log, "ReadSnapshot", context) {}

  /// Ends with Finish, maybe on another thread and before it returns.
  void Begin(const grpc::ByteBuffer& bytes) {
    v1::ReadSnapshotRequest request;
    if (absl::Status status = ParseMessage(bytes, request); !status.ok()) return Fail(status);
    SetCache(request.cache());
    absl::StatusOr<cache::SnapshotSpace> space = FindSpace(plane_, context_, request.cache());
    if (!space.ok()) return Fail(space.status());
    if (absl::Status status = cache::CheckSnapshotKey("key", request.key()); !status.ok()) return Fail(status);
    if (request.offset() < 0) {
      return Fail(cache::InvalidField("offset", absl::StrCat("is ", request.offset(), "; it must not be negative")));
    }
    absl::StatusOr<DetachedCalls::Call> tracked =
        plane_.detached.Begin(DetachedCalls::Kind::kTransfer, [link = link_](const absl::Status& reason) {
          link->Use([&reason](ReadSnapshotReactor& reactor) { reactor.Stop(reason); });
        });
    if (!tracked.ok()) return Fail(tracked.status());
    cache::SnapshotRecord record{.space = *space, .key = request.key()};
    absl::StatusOr<std::shared_ptr<engine::Call>> call = plane_.engine.ReadSnapshot(
        *std::move(space), request.key(),
        [this, record = std::move(record)](absl::StatusOr<engine::SnapshotContents> contents) mutable {
          Fetched(std::move(record), std::move(contents));
        });
    if (!call.ok()) return Fail(call.status());
    const std::shared_ptr<engine::Call> started = *call;
    {
      const std::lock_guard lock(mutex_);
      tracked_ = *std::move(tracked);
      offset_ = request.offset();
      if (finished_) return;  // stopped by a drain meanwhile
      call_ = started;
    }
    started->Start();
  }

 private:
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    in_flight_ = false;
    frame_.Clear();
    if (ok) {
      tracked_.Progress();
      WriteNextLocked();
    }
  }

  void OnCancel() override { Stop(ClientGone()); }

  void OnDone() override {
    { const std::lock_guard lock(mutex_); }  // behind whoever has finished
    link_->Cut();
    delete this;
  }

  void SetCache(const std::string& cache) {
    const std::lock_guard lock(mutex_);
    rpc_.SetCache(cache);
  }

  void Fetched(cache::SnapshotRecord record, absl::StatusOr<engine::SnapshotContents> contents) {
    if (!contents.ok()) return FinishFetch(contents.status(), nullptr);
    record.position = contents->position;
    absl::StatusOr<std::string> header = cache::EncodeSnapshotHeader(record, contents->parts);
    if (!header.ok()) return FinishFetch(header.status(), nullptr);
    auto file = std::make_shared<SnapshotFile>();
    file->header = *std::move(header);
    file->contents = *std::move(contents);
    file->size = static_cast<std::int64_t>(file->header.size()) + record.space.snapshot_bytes();
    FinishFetch(absl::OkStatus(), std::move(file));
  }

  void FinishFetch(absl::Status status, std::shared_ptr<SnapshotFile> file) {
    const std::lock_guard lock(mutex_);
    call_ = nullptr;
    if (status.ok() && !stopped_.ok()) status = stopped_;
    if (status.ok() && offset_ > file->size) {
      status = cache::InvalidField("offset", absl::StrCat("is ", offset_, "; the file has ", file->size, " bytes"));
    }
    if (!status.ok()) return FailLocked(status);
    file_ = std::move(file);
    WriteNextLocked();
  }

  void WriteNextLocked() {
    if (finished_) return;
    if (begun_ && offset_ == file_->size) {
      finished_ = true;
      return Finish(rpc_.End(absl::OkStatus()));
    }
    v1::ReadSnapshotResponse fields;
    if (!begun_) {
      fields.set_size(file_->size);
      fields.set_position(file_->contents.position);
      begun_ = true;
    }
    fields.set_offset(static_cast<std::uint64_t>(offset_));
    const std::int64_t count = std::min(file_->size - offset_, FrameQueue::kPayloadBytes);
    frame_ = EncodePayload(fields, v1::ReadSnapshotResponse::kPayloadFieldNumber, file_->Ranges(offset_, count), file_);
    offset_ += count;
    in_flight_ = true;
    StartWrite(&frame_);
  }

  /// Ends the RPC soon, whatever it is at.
  void Stop(const absl::Status& reason) {
    std::shared_ptr<engine::Call> call;
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
      if (stopped_.ok()) stopped_ = reason;
      call = call_;
      if (call == nullptr) FailLocked(reason);
      // The status cannot pass a frame that the client does not read.
      if (in_flight_) context_.TryCancel();
    }
    if (call != nullptr) call->Cancel(reason);
  }

  void Fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    FailLocked(status);
  }

  void FailLocked(const absl::Status& status) {
    if (finished_) return;
    finished_ = true;
    file_ = nullptr;
    Finish(rpc_.End(status));
  }

  const DataPlane& plane_;
  grpc::CallbackServerContext& context_;
  const std::shared_ptr<Link<ReadSnapshotReactor>> link_;

  std::mutex mutex_;  // guards what follows
  LoggedRpc rpc_;
  DetachedCalls::Call tracked_;
  std::shared_ptr<engine::Call> call_;  // while it runs
  absl::Status stopped_;
  std::shared_ptr<SnapshotFile> file_;  // once it is there
  std::int64_t offset_ = 0;             // of the next frame
  grpc::ByteBuffer frame_;
  bool begun_ = false;
  bool in_flight_ = false;
  bool finished_ = false;
};

/// Takes in a snapshot's file and stores it. One thread reads; the engine's call, which stores, begins when it is done.
class WriteSnapshotReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  WriteSnapshotReactor(const DataPlane& plane, grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : plane_(plane),
        context_(context),
        response_(response),
        link_(std::make_shared<Link<WriteSnapshotReactor>>(this)),
        rpc_(plane.log, "WriteSnapshot", context) {
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

  void OnCancel() override { Stop(ClientGone()); }

  void OnDone() override {
    { const std::lock_guard lock(mutex_); }  // behind whoever has finished
    link_->Cut();
    delete this;
  }

  void SetCache(const std::string& cache) {
    const std::lock_guard lock(mutex_);
    rpc_.SetCache(cache);
  }

  absl::Status TakeHeader() {
    v1::WriteSnapshotHeader header;
    const absl::StatusOr<PayloadFrame> parsed = ParsePayloadFrame(frame_, header);
    if (!parsed.ok()) return parsed.status();
    if (parsed->kind != PayloadFrame::Kind::kHeader) {
      return absl::InvalidArgumentError("the first frame holds no header");
    }
    SetCache(header.cache());
    absl::StatusOr<cache::SnapshotSpace> space = FindSpace(plane_, context_, header.cache());
    if (!space.ok()) return space.status();
    space_ = *std::move(space);
    absl::StatusOr<DetachedCalls::Call> tracked =
        plane_.detached.Begin(DetachedCalls::Kind::kTransfer, [link = link_](const absl::Status& reason) {
          link->Use([&reason](WriteSnapshotReactor& reactor) { reactor.Stop(reason); });
        });
    if (!tracked.ok()) return tracked.status();
    absl::StatusOr<SnapshotUploads::Transfer> transfer = plane_.uploads.Begin(space_, header);
    if (!transfer.ok()) return transfer.status();
    transfer_ = *std::move(transfer);
    const std::lock_guard lock(mutex_);
    tracked_ = *std::move(tracked);
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
    finished_ = true;
    Finish(rpc_.End(absl::OkStatus()));
  }

  /// Ends the RPC soon, whatever it is at.
  void Stop(const absl::Status& reason) {
    std::shared_ptr<engine::Call> call;
    {
      const std::lock_guard lock(mutex_);
      call = call_;
      if (call == nullptr) return FailLocked(reason);
    }
    call->Cancel(reason);
  }

  void FailLocked(const absl::Status& status) {
    if (finished_) return;
    finished_ = true;
    Finish(rpc_.End(status));
  }

  const DataPlane& plane_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  const std::shared_ptr<Link<WriteSnapshotReactor>> link_;

  // Of the reading thread.
  grpc::ByteBuffer frame_;
  cache::SnapshotSpace space_;
  SnapshotUploads::Transfer transfer_;

  std::mutex mutex_;  // guards what follows
  LoggedRpc rpc_;
  DetachedCalls::Call tracked_;
  bool has_header_ = false;
  std::shared_ptr<engine::Call> call_;  // while it runs
  bool finished_ = false;
};

/// Sends events as the store has them. While a frame is under way they gather there, as many as the store keeps.
class WatchSnapshotsReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  WatchSnapshotsReactor(const DataPlane& plane, grpc::CallbackServerContext& context)
      : plane_(plane),
        context_(context),
        link_(std::make_shared<Link<WatchSnapshotsReactor>>(this)),
        rpc_(plane.log, "WatchSnapshots", context) {}

  /// Ends with Finish, maybe on another thread and before it returns.
  void Begin(const grpc::ByteBuffer& bytes) {
    v1::WatchSnapshotsRequest request;
    if (absl::Status status = ParseMessage(bytes, request); !status.ok()) return Stop(status);
    SetCache(request.cache());
    absl::StatusOr<cache::SnapshotSpace> space = FindSpace(plane_, context_, request.cache());
    if (!space.ok()) return Stop(space.status());
    absl::StatusOr<DetachedCalls::Call> tracked =
        plane_.detached.Begin(DetachedCalls::Kind::kWatch, [link = link_](const absl::Status& reason) {
          link->Use([&reason](WatchSnapshotsReactor& reactor) { reactor.Stop(reason); });
        });
    if (!tracked.ok()) return Stop(tracked.status());
    absl::StatusOr<std::unique_ptr<cache::SnapshotWatch>> watch =
        plane_.snapshots.Watch(*space, request.existing(),
                               [link = link_] { link->Use([](WatchSnapshotsReactor& reactor) { reactor.Wake(); }); });
    if (!watch.ok()) return Stop(watch.status());
    const std::lock_guard lock(mutex_);
    tracked_ = *std::move(tracked);
    watch_ = *std::move(watch);
    if (finished_) return;
    StartSendInitialMetadata();  // tells the client that from now on it misses nothing
    WriteNextLocked();
  }

 private:
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    in_flight_ = false;
    frame_.Clear();
    if (ok) WriteNextLocked();
  }

  void OnCancel() override { Stop(ClientGone()); }

  void OnDone() override {
    { const std::lock_guard lock(mutex_); }  // behind whoever has finished
    link_->Cut();
    delete this;
  }

  void SetCache(const std::string& cache) {
    const std::lock_guard lock(mutex_);
    rpc_.SetCache(cache);
  }

  void Wake() {
    const std::lock_guard lock(mutex_);
    WriteNextLocked();
  }

  void WriteNextLocked() {
    if (finished_ || in_flight_ || watch_ == nullptr) return;
    if (next_ == events_.size()) {
      absl::StatusOr<std::vector<cache::SnapshotEvent>> events = watch_->Take();
      if (!events.ok()) return StopLocked(events.status());
      events_ = *std::move(events);
      next_ = 0;
      if (events_.empty()) return;
    }
    v1::WatchSnapshotsResponse response;
    for (; next_ < events_.size() && response.events_size() < kEventsInFrame; ++next_) {
      *response.add_events() = EncodeEvent(events_[next_]);
    }
    frame_ = EncodeMessage(response);
    in_flight_ = true;
    StartWrite(&frame_);
  }

  void Stop(const absl::Status& reason) {
    const std::lock_guard lock(mutex_);
    StopLocked(reason);
  }

  void StopLocked(const absl::Status& reason) {
    if (finished_) return;
    finished_ = true;
    // The status cannot pass a frame that the client does not read.
    if (in_flight_) context_.TryCancel();
    Finish(rpc_.End(reason));
  }

  static constexpr int kEventsInFrame = 4'096;  // a quarter of a megabyte, about

  const DataPlane& plane_;
  grpc::CallbackServerContext& context_;
  const std::shared_ptr<Link<WatchSnapshotsReactor>> link_;

  std::mutex mutex_;  // guards what follows
  LoggedRpc rpc_;
  DetachedCalls::Call tracked_;
  std::unique_ptr<cache::SnapshotWatch> watch_;
  std::vector<cache::SnapshotEvent> events_;
  std::size_t next_ = 0;
  grpc::ByteBuffer frame_;
  bool in_flight_ = false;
  bool finished_ = false;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleReadSnapshot(const DataPlane& plane,
                                                               grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request) {
  auto* const reactor = new ReadSnapshotReactor(plane, *context);
  reactor->Begin(*request);
  return reactor;
}

grpc::ServerReadReactor<grpc::ByteBuffer>* HandleWriteSnapshot(const DataPlane& plane,
                                                               grpc::CallbackServerContext* context,
                                                               grpc::ByteBuffer* response) {
  return new WriteSnapshotReactor(plane, *context, *response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleWatchSnapshots(const DataPlane& plane,
                                                                 grpc::CallbackServerContext* context,
                                                                 const grpc::ByteBuffer* request) {
  auto* const reactor = new WatchSnapshotsReactor(plane, *context);
  reactor->Begin(*request);
  return reactor;
}

}  // namespace gdpcache::rpc
