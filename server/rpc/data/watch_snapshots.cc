#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gdpcache/v1/snapshot.pb.h"
#include "server/rpc/call_context.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/link.h"
#include "server/rpc/snapshot_codec.h"

namespace gdpcache::rpc {
namespace {

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

grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleWatchSnapshots(const DataPlane& plane,
                                                                 grpc::CallbackServerContext* context,
                                                                 const grpc::ByteBuffer* request) {
  auto* const reactor = new WatchSnapshotsReactor(plane, *context);
  reactor->Begin(*request);
  return reactor;
}

}  // namespace gdpcache::rpc
