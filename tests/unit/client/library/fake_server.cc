#include "tests/unit/client/library/fake_server.h"

#include <chrono>

#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace gdpcache::test {

namespace {

/// Around a handler: see FakeServer::Change.
class Ordered {
 public:
  explicit Ordered(FakeServer* fake) : fake_(fake) { Synchronise(); }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;
  ~Ordered() { Synchronise(); }

 private:
  void Synchronise() {
    fake_->Change([] {});
  }

  FakeServer* fake_;
};

}  // namespace

class FakeServer::Service : public v1::StateCache::Service {
 public:
  explicit Service(FakeServer* fake) : fake_(*fake) {}

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse* response) override {
    const Ordered ordered(&fake_);
    return fake_.get_server_info ? fake_.get_server_info(response) : grpc::Status::OK;
  }

  grpc::Status ListCaches(grpc::ServerContext*, const v1::ListCachesRequest*,
                          v1::ListCachesResponse* response) override {
    const Ordered ordered(&fake_);
    v1::Cache* cache = response->add_caches();
    cache->set_name("model");
    *cache->mutable_geometry() = fake_.geometry;
    return grpc::Status::OK;
  }

  grpc::Status OpenSession(grpc::ServerContext*, const v1::OpenSessionRequest* request,
                           v1::OpenSessionResponse* response) override {
    const Ordered ordered(&fake_);
    if (fake_.open_session) return fake_.open_session(*request, response);
    response->set_session("s");
    response->set_ttl_ms(request->ttl_ms());
    return grpc::Status::OK;
  }

  grpc::Status KeepAlive(grpc::ServerContext*, const v1::KeepAliveRequest*, v1::KeepAliveResponse*) override {
    const Ordered ordered(&fake_);
    return fake_.keep_alive ? fake_.keep_alive() : grpc::Status::OK;
  }

  grpc::Status CloseSession(grpc::ServerContext*, const v1::CloseSessionRequest*, v1::CloseSessionResponse*) override {
    const Ordered ordered(&fake_);
    if (fake_.close_session) fake_.close_session();
    return grpc::Status::OK;
  }

  grpc::Status AcquireSlots(grpc::ServerContext*, const v1::AcquireSlotsRequest* request,
                            v1::AcquireSlotsResponse* response) override {
    const Ordered ordered(&fake_);
    return fake_.acquire_slots(*request, response);
  }

  grpc::Status Prefill(grpc::ServerContext*, const v1::PrefillRequest* request,
                       v1::PrefillResponse* response) override {
    const Ordered ordered(&fake_);
    return fake_.prefill(*request, response);
  }

  grpc::Status PrefillStream(grpc::ServerContext* context, FakeServer::PrefillStream* stream) override {
    const Ordered ordered(&fake_);
    return Now(fake_.prefill_stream)(context, stream);
  }

  grpc::Status ReadSlots(grpc::ServerContext*, const v1::ReadSlotsRequest* request,
                         grpc::ServerWriter<v1::ReadSlotsFrame>* writer) override {
    const Ordered ordered(&fake_);
    return Now(fake_.read_slots)(*request, writer);
  }

  grpc::Status WriteSlots(grpc::ServerContext*, grpc::ServerReader<v1::WriteSlotsFrame>* reader,
                          v1::WriteSlotsResponse*) override {
    const Ordered ordered(&fake_);
    return Now(fake_.write_slots)(reader);
  }

  grpc::Status LookupPrefix(grpc::ServerContext*, const v1::LookupPrefixRequest* request,
                            v1::LookupPrefixResponse* response) override {
    const Ordered ordered(&fake_);
    return fake_.lookup_prefix(*request, response);
  }

  grpc::Status WatchSnapshots(grpc::ServerContext* context, const v1::WatchSnapshotsRequest* request,
                              grpc::ServerWriter<v1::WatchSnapshotsResponse>* writer) override {
    const Ordered ordered(&fake_);
    return Now(fake_.watch_snapshots)(*request, context, writer);
  }

  grpc::Status ReadSnapshot(grpc::ServerContext*, const v1::ReadSnapshotRequest* request,
                            grpc::ServerWriter<v1::ReadSnapshotResponse>* writer) override {
    const Ordered ordered(&fake_);
    return Now(fake_.read_snapshot)(*request, writer);
  }

  grpc::Status WriteSnapshot(grpc::ServerContext*, grpc::ServerReader<v1::WriteSnapshotRequest>* reader,
                             v1::WriteSnapshotResponse* response) override {
    const Ordered ordered(&fake_);
    return Now(fake_.write_snapshot)(reader, response);
  }

  grpc::Status QueryWriteStatus(grpc::ServerContext*, const v1::QueryWriteStatusRequest* request,
                                v1::QueryWriteStatusResponse* response) override {
    const Ordered ordered(&fake_);
    return fake_.query_write_status(*request, response);
  }

 private:
  /// Of a stream's handler, which the test may change while it runs: its client may have seen enough.
  template <typename Handler>
  Handler Now(const Handler& handler) {
    Handler copy;
    fake_.Change([&] { copy = handler; });
    return copy;
  }

  FakeServer& fake_;
};

FakeServer::FakeServer() : service_(std::make_unique<Service>(this)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
}

FakeServer::~FakeServer() {
  Change([] {});
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

}  // namespace gdpcache::test
