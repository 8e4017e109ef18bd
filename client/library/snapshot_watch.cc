#include <atomic>
#include <memory>
#include <utility>

#include "client/library/connection.h"
#include "client/library/frame_encoding.h"
#include "client/library/incoming_tensors.h"
#include "client/library/snapshots.h"
#include "client/library/status_conversion.h"
#include "gdpcache/client.h"
#include "gdpcache/snapshot.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"

namespace gdpcache {

/// One call whose answers are read as they are asked for. All operations are of the thread in Next, but for the
/// cancellation, which gRPC takes from any.
class SnapshotWatch::Impl {
 public:
  Impl(std::shared_ptr<const client::Connection> connection, const v1::WatchSnapshotsRequest& request,
       absl::Time deadline)
      : connection_(std::move(connection)) {
    client::Connection::SetDeadline(deadline, &context_);
    call_ = connection_->raw_stub().PrepareCall(&context_, "/gdpcache.v1.StateCache/WatchSnapshots", &queue_);
    call_->StartCall(nullptr);
    if (Wait()) {
      call_->WriteLast(client::EncodeMessage(request), {}, nullptr);
      Wait();
      // The server sends it when it has begun to watch: what is stored after the constructor is told.
      call_->ReadInitialMetadata(nullptr);
      Wait();
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() {
    if (!ended_) {
      context_.TryCancel();
      End();
    }
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  absl::StatusOr<std::vector<SnapshotEvent>> Next() {
    if (ended_) return status_;
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, nullptr);
    if (!Wait()) {
      End();
      return status_;
    }
    v1::WatchSnapshotsResponse response;
    if (absl::Status status = client::ParseMessage(buffer, &response); !status.ok()) {
      context_.TryCancel();
      End();
      status_ = status;
      return status;
    }
    std::vector<SnapshotEvent> events;
    for (const v1::SnapshotEvent& event : response.events()) events.push_back(client::FromProto(event));
    if (events.empty()) return Next();
    return events;
  }

  void Cancel() {
    cancelled_ = true;
    context_.TryCancel();
  }

 private:
  /// The end of the one operation under way.
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  void End() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
    ended_ = true;
    status_ = cancelled_ ? absl::CancelledError("the watch was cancelled") : connection_->Annotate(status);
    // Only the caller ends a watch.
    if (status_.ok()) status_ = client::ProtocolError("the watch ended without an error");
  }

  const std::shared_ptr<const client::Connection> connection_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool ended_ = false;
  std::atomic<bool> cancelled_ = false;
  absl::Status status_;
};

SnapshotWatch::SnapshotWatch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SnapshotWatch::SnapshotWatch(SnapshotWatch&&) noexcept = default;
SnapshotWatch& SnapshotWatch::operator=(SnapshotWatch&&) noexcept = default;
SnapshotWatch::~SnapshotWatch() = default;

absl::StatusOr<std::vector<SnapshotEvent>> SnapshotWatch::Next() { return impl_->Next(); }
void SnapshotWatch::Cancel() { impl_->Cancel(); }

SnapshotWatch Client::WatchSnapshots(const std::string& cache, bool existing, const CallOptions& options) const {
  v1::WatchSnapshotsRequest request;
  request.set_cache(cache);
  request.set_existing(existing);
  const absl::Time deadline = options.timeout.has_value() ? connection_->Deadline(options) : absl::InfiniteFuture();
  return SnapshotWatch(std::make_unique<SnapshotWatch::Impl>(connection_, request, deadline));
}

}  // namespace gdpcache
