#ifndef GDPCACHE_TESTS_UNIT_CLIENT_LIBRARY_FAKE_SERVER_H_
#define GDPCACHE_TESTS_UNIT_CLIENT_LIBRARY_FAKE_SERVER_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "grpcpp/server.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {

/// A server on a Unix socket of its own that answers each call as the test says. It has one cache "model" and one
/// session "s" unless told otherwise. Handlers run on the server's threads; set them before address(), or between calls
/// in Change().
class FakeServer {
 public:
  using PrefillStream = grpc::ServerReaderWriter<v1::PrefillFrame, v1::PrefillFrame>;

  FakeServer();
  ~FakeServer();

  /// "unix:PATH". Asked for after the handlers of the first calls are set.
  std::string address() {
    Change([] {});
    return "unix:" + directory_.path() + "/socket";
  }

  /// How a test changes what handlers of earlier calls have read and those of later ones will: ThreadSanitizer cannot
  /// see that a call begins before its handler and ends after it.
  void Change(const std::function<void()>& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change();
  }

  /// The geometry of "model".
  v1::CacheGeometry geometry;

  std::function<grpc::Status(v1::GetServerInfoResponse*)> get_server_info;
  std::function<grpc::Status(const v1::OpenSessionRequest&, v1::OpenSessionResponse*)> open_session;
  std::function<grpc::Status()> keep_alive;
  std::function<void()> close_session;
  std::function<grpc::Status(const v1::AcquireSlotsRequest&, v1::AcquireSlotsResponse*)> acquire_slots;
  std::function<grpc::Status(const v1::PrefillRequest&, v1::PrefillResponse*)> prefill;
  std::function<grpc::Status(grpc::ServerContext*, PrefillStream*)> prefill_stream;
  std::function<grpc::Status(const v1::ReadSlotsRequest&, grpc::ServerWriter<v1::ReadSlotsFrame>*)> read_slots;
  std::function<grpc::Status(grpc::ServerReader<v1::WriteSlotsFrame>*)> write_slots;
  std::function<grpc::Status(const v1::LookupPrefixRequest&, v1::LookupPrefixResponse*)> lookup_prefix;
  std::function<grpc::Status(const v1::WatchSnapshotsRequest&, grpc::ServerContext*,
                             grpc::ServerWriter<v1::WatchSnapshotsResponse>*)>
      watch_snapshots;
  std::function<grpc::Status(const v1::ReadSnapshotRequest&, grpc::ServerWriter<v1::ReadSnapshotResponse>*)>
      read_snapshot;
  std::function<grpc::Status(grpc::ServerReader<v1::WriteSnapshotRequest>*, v1::WriteSnapshotResponse*)> write_snapshot;
  std::function<grpc::Status(const v1::QueryWriteStatusRequest&, v1::QueryWriteStatusResponse*)> query_write_status;

 private:
  class Service;

  std::mutex mutex_;

  const TemporaryDirectory directory_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_UNIT_CLIENT_LIBRARY_FAKE_SERVER_H_
