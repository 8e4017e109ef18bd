#ifndef GDPCACHE_TESTS_UNIT_CLIENT_LIBRARY_FAKE_SERVER_H_
#define GDPCACHE_TESTS_UNIT_CLIENT_LIBRARY_FAKE_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "grpcpp/server.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {

/// A server on a Unix socket of its own that answers each call as the test says. It has one cache "model" and one
/// session "s" unless told otherwise. Handlers run on the server's threads; set them before the first call.
class FakeServer {
 public:
  using PrefillStream = grpc::ServerReaderWriter<v1::PrefillFrame, v1::PrefillFrame>;

  FakeServer();
  ~FakeServer();

  /// "unix:PATH"
  std::string address() const { return "unix:" + directory_.path() + "/socket"; }

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

 private:
  class Service;

  const TemporaryDirectory directory_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_UNIT_CLIENT_LIBRARY_FAKE_SERVER_H_
