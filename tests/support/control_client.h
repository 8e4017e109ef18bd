#ifndef GDPCACHE_TESTS_SUPPORT_CONTROL_CLIENT_H_
#define GDPCACHE_TESTS_SUPPORT_CONTROL_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "gtest/gtest.h"

namespace gdpcache::test {

/// The generated stub with less ceremony: each call has a deadline and returns its status.
class ControlClient {
 public:
  explicit ControlClient(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::StateCache::NewStub(channel)) {}

  /// Any unary method: Call(&Stub::OpenSession, request, response).
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::StateCache::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return (stub_.get()->*method)(&context, request, &response);
  }
  /// When nobody reads the response.
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::StateCache::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request) {
    Response response;
    return Call(method, request, response);
  }

  v1::StateCache::Stub& stub() { return *stub_; }

  /// A request for a small cache: 2 layers of `slots` states [2, 4, 3].
  static v1::CreateCacheRequest SmallCache(const std::string& name, std::int64_t slots = 8) {
    v1::CreateCacheRequest request;
    request.set_name(name);
    request.mutable_geometry()->set_layers(2);
    request.mutable_geometry()->set_slots(slots);
    request.mutable_geometry()->set_heads(2);
    request.mutable_geometry()->set_key_dim(4);
    request.mutable_geometry()->set_value_dim(3);
    request.set_fingerprint("model@1");
    return request;
  }

  /// These must succeed.
  v1::CreateCacheResponse CreateCache(const v1::CreateCacheRequest& request) {
    v1::CreateCacheResponse response;
    ExpectOk(Call(&v1::StateCache::Stub::CreateCache, request, response));
    return response;
  }
  std::string OpenSession(const std::string& cache, std::int64_t ttl_ms = 0, const std::string& client_name = "test") {
    v1::OpenSessionRequest request;
    request.set_cache(cache);
    request.set_ttl_ms(ttl_ms);
    request.set_client_name(client_name);
    v1::OpenSessionResponse response;
    ExpectOk(Call(&v1::StateCache::Stub::OpenSession, request, response));
    return response.session();
  }
  std::vector<std::int64_t> AcquireSlots(const std::string& session, std::int64_t count) {
    v1::AcquireSlotsRequest request;
    request.set_session(session);
    request.set_count(count);
    v1::AcquireSlotsResponse response;
    ExpectOk(Call(&v1::StateCache::Stub::AcquireSlots, request, response));
    return std::vector<std::int64_t>(response.slots().begin(), response.slots().end());
  }
  v1::ListSlotsResponse ListSlots(const std::string& cache) {
    v1::ListSlotsRequest request;
    request.set_cache(cache);
    v1::ListSlotsResponse response;
    ExpectOk(Call(&v1::StateCache::Stub::ListSlots, request, response));
    return response;
  }
  v1::GetServerInfoResponse GetServerInfo() {
    v1::GetServerInfoResponse response;
    ExpectOk(Call(&v1::StateCache::Stub::GetServerInfo, v1::GetServerInfoRequest(), response));
    return response;
  }

 private:
  static void ExpectOk(const grpc::Status& status) {
    EXPECT_TRUE(status.ok()) << status.error_code() << ": " << status.error_message();
  }

  std::unique_ptr<v1::StateCache::Stub> stub_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_CONTROL_CLIENT_H_
