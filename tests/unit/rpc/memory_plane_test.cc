#include "server/rpc/memory/memory_plane.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "server/cache/task_thread.h"
#include "server/rpc/server.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/manual_clock.h"
#include "tests/support/noting_sharing.h"
#include "tests/support/registration_token.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::rpc {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Stub = v1::StateCache::Stub;

/// A server whose backend can share memory of a device, and a client of it on the loopback interface.
class MemoryPlaneTest : public ::testing::Test {
 protected:
  MemoryPlaneTest() { backend_.OfferSharing(&sharing_); }
  ~MemoryPlaneTest() override { EXPECT_TRUE(server_->Shutdown(absl::Seconds(10)).ok()); }

  void Start(const std::string& unix_path) {
    ServerOptions options;
    options.listen = {"127.0.0.1:0"};
    options.unix_path = unix_path;
    options.max_message_bytes = 1 << 20;
    options.shared_memory_bytes = 1 << 20;
    auto started =
        Server::Start(options, backend_.device_info(), catalog_, *engine_, *snapshots_, thread_, clock_, metrics_);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    client_.emplace(grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials()));
    client_->CreateCache(test::ControlClient::SmallCache("a"));
    session_ = client_->OpenSession("a");
  }

  std::thread::id ThreadForMemory() {
    std::thread::id thread;
    thread_.Run([&thread] { thread = std::this_thread::get_id(); });
    thread_.Finish();
    return thread;
  }

  grpc::Status RegisterMemory(const std::string& name, const std::string& token) {
    return RegisterMemory(session_, name, token);
  }

  grpc::Status RegisterMemory(const std::string& session, const std::string& name, const std::string& token) {
    v1::RegisterCudaMemoryRequest request;
    request.set_session(session);
    request.set_name(name);
    request.set_handle(std::string(64, 'h'));
    request.set_size(sizeof(sharing_.memory));
    request.set_token(token);
    return client_->Call(&Stub::RegisterCudaMemory, request);
  }

  grpc::Status RegisterEvent(const std::string& name, const std::string& token) {
    return RegisterEvent(session_, name, token);
  }

  grpc::Status RegisterEvent(const std::string& session, const std::string& name, const std::string& token) {
    v1::RegisterCudaEventRequest request;
    request.set_session(session);
    request.set_name(name);
    request.set_handle(std::string(64, 'h'));
    request.set_token(token);
    return client_->Call(&Stub::RegisterCudaEvent, request);
  }

  test::TemporaryDirectory directory_;
  test::NotingSharing sharing_;
  std::unique_ptr<kernels::Backend> cpu_ =
      *kernels::CreateBackend({.choice = kernels::BackendChoice::kCpu, .cpu_threads = 1});
  test::FaultInjectingBackend backend_{*cpu_};
  test::ManualClock clock_;
  cache::TaskThread thread_;
  cache::Catalog catalog_{backend_,
                          clock_,
                          {.max_caches = 1,
                           .max_sessions = 2,
                           .state_memory_bytes = 1 << 20,
                           .default_session_ttl = absl::Minutes(1),
                           .max_session_ttl = absl::Minutes(1)},
                          nullptr,
                          &thread_};
  std::unique_ptr<cache::SnapshotStore> snapshots_ = cache::SnapshotStore::Create(backend_, clock_, {}, {}).value();
  std::unique_ptr<engine::Engine> engine_ = engine::Engine::Create(backend_, {}).value();
  ServerMetrics metrics_;
  std::unique_ptr<Server> server_;
  std::optional<test::ControlClient> client_;
  std::string session_;
};

TEST_F(MemoryPlaneTest, LoopbackAloneRegistersNothingOfADevice) {
  Start(directory_.path() + "/socket");
  EXPECT_THAT(client_->GetServerInfo().transports(), Contains("cuda_ipc"));
  const std::string socket = client_->GetServerInfo().descriptor_socket();
  for (const std::string& token : {std::string(), std::string(32, '0')}) {
    EXPECT_EQ(RegisterMemory("r", token).error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(RegisterEvent("e", token).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_EQ(sharing_.open, 0) << "no handle was looked at";
  const std::string token = test::RegistrationToken(socket);
  EXPECT_THAT(token, SizeIs(32));
  EXPECT_TRUE(RegisterMemory("r", token).ok());
  EXPECT_EQ(RegisterMemory("s", token).error_code(), grpc::StatusCode::NOT_FOUND) << "good for one";
  EXPECT_TRUE(RegisterEvent("e", test::RegistrationToken(socket)).ok());
  EXPECT_EQ(sharing_.open, 2);
}

TEST_F(MemoryPlaneTest, ATokenWithoutADescriptorIsNoneForSystemMemory) {
  Start(directory_.path() + "/socket");
  v1::RegisterSystemMemoryRequest request;
  request.set_session(session_);
  request.set_name("r");
  request.set_size(1);
  request.set_token(test::RegistrationToken(client_->GetServerInfo().descriptor_socket()));
  const grpc::Status status = client_->Call(&Stub::RegisterSystemMemory, request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("for system memory"));
}

TEST_F(MemoryPlaneTest, WhereNobodyCanShowWhoTheyAreNothingIsShared) {
  Start("");
  const v1::GetServerInfoResponse info = client_->GetServerInfo();
  EXPECT_THAT(info.transports(), Not(Contains("cuda_ipc")));
  EXPECT_THAT(info.device_uuid(), IsEmpty());
  EXPECT_EQ(RegisterMemory("r", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(RegisterEvent("e", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(MemoryPlaneTest, MemoryOfTwoSessionsStaysWithOneWhenTheOtherEndsDuringItsCall) {
  Start(directory_.path() + "/socket");
  const std::string socket = client_->GetServerInfo().descriptor_socket();
  const std::string other = client_->OpenSession("a");
  for (const std::string& session : {session_, other}) {
    ASSERT_TRUE(RegisterMemory(session, "r", test::RegistrationToken(socket)).ok());
    ASSERT_TRUE(RegisterEvent(session, "ready", test::RegistrationToken(socket)).ok());
    ASSERT_TRUE(RegisterEvent(session, "done", test::RegistrationToken(socket)).ok());
  }
  EXPECT_EQ(sharing_.open, 6);

  // One token of SmallCache's two heads, K = 4 and V = 3; k and w are in the same place.
  constexpr std::size_t kU = 64;
  constexpr std::size_t kResult = 128;
  constexpr std::size_t kResultBytes = sizeof(float) * 2 * 3;
  const std::vector<float> inputs(32, 0.5F);
  std::memcpy(sharing_.memory, inputs.data(), sizeof(float) * inputs.size());
  const auto prefill = [&](const std::string& session) {
    v1::PrefillRequest request;
    request.set_session(session);
    const auto place = [](v1::Tensor& tensor, std::int64_t dim, std::size_t offset) {
      tensor.set_dtype(v1::DATA_TYPE_FLOAT32);
      for (const std::int64_t size : {std::int64_t{1}, std::int64_t{2}, dim}) tensor.add_shape(size);
      tensor.mutable_shared_memory()->set_region("r");
      tensor.mutable_shared_memory()->set_offset(offset);
    };
    place(*request.mutable_k(), 4, 0);
    place(*request.mutable_w(), 4, 0);
    place(*request.mutable_u(), 3, kU);
    request.set_initial_state_source(v1::INITIAL_STATE_SOURCE_ZERO);
    request.set_save_new_value(true);
    request.mutable_outputs()->mutable_v_new()->set_region("r");
    request.mutable_outputs()->mutable_v_new()->set_offset(kResult);
    request.set_ready_event("ready");
    request.set_done_event("done");
    return client_->Call(&Stub::Prefill, request);
  };
  const auto take_result = [&] {
    const std::string result(sharing_.memory + kResult, kResultBytes);
    std::fill_n(sharing_.memory + kResult, kResultBytes, '\0');
    return result;
  };
  const std::string expected(sharing_.memory + kU, kResultBytes);  // from zero v_new is u
  for (const std::string& session : {session_, other}) {
    const grpc::Status status = prefill(session);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(take_result(), expected);
  }

  std::promise<void> running;
  std::promise<void> let_go;
  backend_.BeforeEach(test::FaultInjectingBackend::Operation::kRunRecurrence, [&] {
    running.set_value();
    let_go.get_future().wait();
  });
  auto call = std::async(std::launch::async, [&] { return prefill(session_); });
  running.get_future().wait();
  v1::CloseSessionRequest close;
  close.set_session(other);
  EXPECT_TRUE(client_->Call(&Stub::CloseSession, close).ok());
  EXPECT_TRUE(test::Eventually([&] { return sharing_.open == 3; })) << sharing_.open;
  EXPECT_EQ(prefill(other).error_code(), grpc::StatusCode::NOT_FOUND);

  // The call is the last to use the memory.
  auto unregistered = std::async(std::launch::async, [&] {
    v1::UnregisterMemoryRequest request;
    request.set_session(session_);
    request.set_name("r");
    return client_->Call(&Stub::UnregisterMemory, request);
  });
  const std::shared_ptr<cache::Session> session = catalog_.FindSession(session_, cache::kDefaultTenant).value();
  EXPECT_TRUE(test::Eventually([&] { return session->regions().List().size() == 2; }));
  EXPECT_EQ(sharing_.open, 3);
  let_go.set_value();
  const grpc::Status status = call.get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(take_result(), expected);
  EXPECT_TRUE(unregistered.get().ok());
  EXPECT_EQ(sharing_.open, 2);
  EXPECT_THAT(sharing_.closers(), ElementsAre(ThreadForMemory()));
}

TEST_F(MemoryPlaneTest, WhatASessionHasOpenedIsClosedOnTheThreadForItHoweverThatComes) {
  Start(directory_.path() + "/socket");
  const std::string socket = client_->GetServerInfo().descriptor_socket();
  const auto open = [&](const std::string& session) {
    ASSERT_TRUE(RegisterMemory(session, "r", test::RegistrationToken(socket)).ok());
    ASSERT_TRUE(RegisterEvent(session, "ready", test::RegistrationToken(socket)).ok());
    ASSERT_TRUE(RegisterEvent(session, "done", test::RegistrationToken(socket)).ok());
  };
  open(session_);
  EXPECT_EQ(RegisterEvent("done", test::RegistrationToken(socket)).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(sharing_.open, 3);
  v1::UnregisterMemoryRequest unregister;
  unregister.set_session(session_);
  unregister.set_name("r");
  EXPECT_TRUE(client_->Call(&Stub::UnregisterMemory, unregister).ok());
  EXPECT_EQ(sharing_.open, 2);
  v1::CloseSessionRequest close;
  close.set_session(session_);
  EXPECT_TRUE(client_->Call(&Stub::CloseSession, close).ok());
  EXPECT_EQ(sharing_.open, 0) << "who has the answer may free the memory";

  open(client_->OpenSession("a"));  // by a client that is killed
  EXPECT_EQ(sharing_.open, 3);
  clock_.Advance(absl::Minutes(2));
  catalog_.ExpireSessions();
  thread_.Finish();
  EXPECT_EQ(sharing_.open, 0);

  open(client_->OpenSession("a"));
  v1::DeleteCacheRequest remove;
  remove.set_name("a");
  remove.set_force(true);
  EXPECT_TRUE(client_->Call(&Stub::DeleteCache, remove).ok());
  thread_.Finish();
  EXPECT_EQ(sharing_.open, 0);

  EXPECT_THAT(sharing_.closers(), ElementsAre(ThreadForMemory()));
}

TEST_F(MemoryPlaneTest, TheMemoryOfACacheIsTakenOnThatThreadToo) {
  std::set<std::thread::id> takers;
  backend_.BeforeEach(test::FaultInjectingBackend::Operation::kAllocate,
                      [&takers] { takers.insert(std::this_thread::get_id()); });
  Start("");
  EXPECT_THAT(takers, ElementsAre(ThreadForMemory()));
}

}  // namespace
}  // namespace gdpcache::rpc
