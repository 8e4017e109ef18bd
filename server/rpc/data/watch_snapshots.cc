#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gdpcache/v1/snapshot.pb.h"
#include "server/rpc/data/detached_stream.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/snapshot_codec.h"

namespace gdpcache::rpc {
namespace {

/// Sends events as the store has them. While a frame is under way they gather there, as many as the store keeps.
class WatchSnapshotsReactor final : public DetachedStream<grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  WatchSnapshotsReactor(const DataPlane& plane, grpc::CallbackServerContext& context)
      : DetachedStream(plane, "WatchSnapshots", context) {}

  /// Ends with Finish, maybe on another thread and before it returns.
  void Begin(const grpc::ByteBuffer& bytes) {
    v1::WatchSnapshotsRequest request;
    if (absl::Status status = ParseMessage(bytes, request); !status.ok()) return Fail(status);
    absl::StatusOr<cache::SnapshotSpace> space = FindSpaceOf(request.cache());
    if (!space.ok()) return Fail(space.status());
    if (absl::Status status = Track(DetachedCalls::Kind::kWatch); !status.ok()) return Fail(status);
    absl::StatusOr<std::unique_ptr<cache::SnapshotWatch>> watch =
        plane_.snapshots.Watch(*space, request.existing(), [link = link_] {
          link->Use([](DetachedStream& stream) { static_cast<WatchSnapshotsReactor&>(stream).Wake(); });
        });
    if (!watch.ok()) return Fail(watch.status());
    const std::lock_guard lock(mutex_);
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

  void Wake() {
    const std::lock_guard lock(mutex_);
    WriteNextLocked();
  }

  void WriteNextLocked() {
    if (finished_ || in_flight_ || watch_ == nullptr) return;
    if (next_ == events_.size()) {
      absl::StatusOr<std::vector<cache::SnapshotEvent>> events = watch_->Take();
      if (!events.ok()) return FailLocked(events.status());
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

  void Stop(const absl::Status& reason) override { Fail(reason); }

  void FailLocked(const absl::Status& status) override {
    // The status cannot pass a frame that the client does not read.
    if (!finished_ && in_flight_) context_.TryCancel();
    DetachedStream::FailLocked(status);
  }

  static constexpr int kEventsInFrame = 4'096;  // a quarter of a megabyte, about

  // The mutex guards what follows.
  std::unique_ptr<cache::SnapshotWatch> watch_;
  std::vector<cache::SnapshotEvent> events_;
  std::size_t next_ = 0;
  grpc::ByteBuffer frame_;
  bool in_flight_ = false;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleWatchSnapshots(const DataPlane& plane,
                                                                 grpc::CallbackServerContext* context,
                                                                 const grpc::ByteBuffer* request) {
  auto* const reactor = new WatchSnapshotsReactor(plane, *context);
  reactor->Begin(*request);
  return reactor;
}

}  // namespace gdpcache::rpc
