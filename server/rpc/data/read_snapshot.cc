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
#include "server/rpc/data/detached_stream.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/frame_queue.h"
#include "server/rpc/payload_codec.h"

namespace gdpcache::rpc {
namespace {

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
class ReadSnapshotReactor final : public DetachedStream<grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  ReadSnapshotReactor(const DataPlane& plane, grpc::CallbackServerContext& context)
      : DetachedStream(plane, "ReadSnapshot", context) {}

  /// Ends with Finish, maybe on another thread and before it returns.
  void Begin(const grpc::ByteBuffer& bytes) {
    v1::ReadSnapshotRequest request;
    if (absl::Status status = ParseMessage(bytes, request); !status.ok()) return Fail(status);
    absl::StatusOr<cache::SnapshotSpace> space = FindSpaceOf(request.cache());
    if (!space.ok()) return Fail(space.status());
    if (absl::Status status = cache::CheckSnapshotKey("key", request.key()); !status.ok()) return Fail(status);
    if (request.offset() < 0) {
      return Fail(cache::InvalidField("offset", absl::StrCat("is ", request.offset(), "; it must not be negative")));
    }
    if (absl::Status status = Track(DetachedCalls::Kind::kTransfer); !status.ok()) return Fail(status);
    cache::SnapshotRecord record{.space = *space, .key = request.key()};
    auto share = cache::BudgetOf(plane_.catalog.UseOf(space->tenant), &cache::TenantUse::staging);
    absl::StatusOr<std::shared_ptr<engine::Call>> call = plane_.engine.ReadSnapshot(
        *std::move(space), request.key(),
        [this, record = std::move(record)](absl::StatusOr<engine::SnapshotContents> contents) mutable {
          Fetched(std::move(record), std::move(contents));
        },
        std::move(share));
    if (!call.ok()) return Fail(call.status());
    const std::shared_ptr<engine::Call> started = *call;
    {
      const std::lock_guard lock(mutex_);
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
      return FinishLocked(rpc_.End(absl::OkStatus()));
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

  void Stop(const absl::Status& reason) override {
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

  void FailLocked(const absl::Status& status) override {
    file_ = nullptr;
    DetachedStream::FailLocked(status);
  }

  // The mutex guards what follows.
  std::shared_ptr<engine::Call> call_;  // while it runs
  absl::Status stopped_;
  std::shared_ptr<SnapshotFile> file_;  // once it is there
  std::int64_t offset_ = 0;             // of the next frame
  grpc::ByteBuffer frame_;
  bool begun_ = false;
  bool in_flight_ = false;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleReadSnapshot(const DataPlane& plane,
                                                               grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request) {
  auto* const reactor = new ReadSnapshotReactor(plane, *context);
  reactor->Begin(*request);
  return reactor;
}

}  // namespace gdpcache::rpc
