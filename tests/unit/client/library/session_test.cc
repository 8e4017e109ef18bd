#include <atomic>
#include <future>
#include <string>

#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/client/library/fake_server.h"

namespace gdpcache {
namespace {

using ::gdpcache::test::FakeServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ConnectTest, NamesTheAddressWhereNobodyListens) {
  const test::TemporaryDirectory directory;
  const std::string address = "unix:" + directory.path() + "/nobody.sock";
  const absl::StatusOr<Client> client = Client::Connect(address);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr(address));
  EXPECT_EQ(Client::Connect("nonsense").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ConnectTest, RefusesAnotherKindOfServer) {
  FakeServer server;
  server.get_server_info = [](auto*) { return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""); };
  const absl::StatusOr<Client> client = Client::Connect(server.address());
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("is no gdpcache server"));
}

TEST(ConnectTest, GivesUpOnASilentServer) {
  FakeServer server;
  std::promise<void> end;
  server.get_server_info = [done = end.get_future().share()](auto*) {
    done.wait();
    return grpc::Status::OK;
  };
  ClientOptions options;
  options.connect_timeout = absl::Milliseconds(50);
  const absl::StatusOr<Client> client = Client::Connect(server.address(), options);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("no answer within 50ms"));
  end.set_value();
}

TEST(ClientTest, TellsAboutTheServer) {
  FakeServer server;
  server.get_server_info = [](v1::GetServerInfoResponse* response) {
    response->set_version("9.9");
    response->set_backend("cpu");
    response->mutable_limits()->set_max_session_ttl_ms(1500);
    response->add_addresses("unix:/x");
    v1::Cache* cache = response->add_caches();
    cache->set_name("model");
    cache->mutable_geometry()->set_state_dtype(v1::DATA_TYPE_BFLOAT16);
    cache->set_free_slots(3);
    return grpc::Status::OK;
  };
  absl::StatusOr<Client> client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::StatusOr<ServerInfo> info = client->GetServerInfo();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->version, "9.9");
  EXPECT_EQ(info->limits.max_session_ttl, absl::Milliseconds(1500));
  EXPECT_THAT(info->addresses, ElementsAre("unix:/x"));
  ASSERT_EQ(info->caches.size(), 1);
  EXPECT_EQ(info->caches[0].geometry.state_dtype, DataType::kBFloat16);
  EXPECT_EQ(info->caches[0].geometry.num_householder, 1);
  EXPECT_EQ(info->caches[0].free_slots, 3);
}

TEST(SessionTest, KnowsItsCacheAndClosesOnDestruction) {
  FakeServer server;
  server.geometry.set_heads(7);
  std::atomic<int> closed = 0;
  server.close_session = [&closed] { ++closed; };
  absl::StatusOr<Client> client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok());
  {
    absl::StatusOr<Session> session = client->OpenSession("model");
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_EQ(session->id(), "s");
    EXPECT_EQ(session->geometry().heads, 7);
    Session moved = *std::move(session);
    EXPECT_EQ(moved.cache(), "model");
    EXPECT_EQ(closed, 0);
  }
  EXPECT_EQ(closed, 1);
  {
    absl::StatusOr<Session> session = client->OpenSession("model");
    EXPECT_TRUE(session->Close().ok());
    EXPECT_EQ(closed, 2);
  }
  EXPECT_EQ(closed, 2);
}

TEST(SessionTest, WhatGrpcCancelsInAServersLastMomentIsUnavailable) {
  FakeServer server;
  server.acquire_slots = [](const v1::AcquireSlotsRequest& request, v1::AcquireSlotsResponse*) {
    // The server's own has a detail; what gRPC makes up has none.
    return grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED", request.count() == 1 ? "" : "\x08\x01");
  };
  const absl::StatusOr<Client> client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok());
  absl::StatusOr<Session> session = client->OpenSession("model");
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::Status stopped = session->AcquireSlots(1).status();
  EXPECT_EQ(stopped.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(stopped.message()), ::testing::HasSubstr(server.address()));
  EXPECT_EQ(session->AcquireSlots(2).status().code(), absl::StatusCode::kCancelled);
}

TEST(SessionTest, OutlivesItsClient) {
  FakeServer server;
  server.acquire_slots = [](const v1::AcquireSlotsRequest&, v1::AcquireSlotsResponse* response) {
    response->add_slots(5);
    return grpc::Status::OK;
  };
  absl::StatusOr<Session> session = Client::Connect(server.address())->OpenSession("model");
  ASSERT_TRUE(session.ok());
  EXPECT_THAT(*session->AcquireSlots(1), ElementsAre(5));
  EXPECT_EQ(session->AcquireSlots(2).status().code(), absl::StatusCode::kInternal);
}

TEST(SessionTest, IsRenewedUntilTheServerSaysItIsGone) {
  FakeServer server;
  std::promise<void> gone;
  std::atomic<int> renewals = 0;
  server.keep_alive = [&] {
    const int number = ++renewals;
    if (number == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "busy");
    if (number < 4) return grpc::Status::OK;
    if (number == 4) gone.set_value();
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "session has expired");
  };
  absl::StatusOr<Client> client = Client::Connect(server.address());
  SessionOptions options;
  options.ttl = absl::Milliseconds(30);
  absl::StatusOr<Session> session = client->OpenSession("model", options);
  ASSERT_TRUE(session.ok());
  EXPECT_TRUE(session->status().ok());
  gone.get_future().wait();
  EXPECT_TRUE(test::Eventually([&] { return !session->status().ok(); }));
  EXPECT_EQ(session->status().code(), absl::StatusCode::kNotFound);
}

TEST(SessionTest, EndsWhileARenewalHangs) {
  FakeServer server;
  std::promise<void> hanging;
  std::promise<void> end;
  server.keep_alive = [&, done = end.get_future().share()] {
    hanging.set_value();
    done.wait();
    return grpc::Status::OK;
  };
  absl::StatusOr<Client> client = Client::Connect(server.address());
  SessionOptions options;
  options.ttl = absl::Seconds(3);
  absl::StatusOr<Session> session = client->OpenSession("model", options);
  ASSERT_TRUE(session.ok());
  hanging.get_future().wait();
  EXPECT_TRUE(session->Close().ok());
  end.set_value();
}

TEST(SessionTest, BringsTheServersErrorsWithTheirDetails) {
  FakeServer server;
  server.acquire_slots = [](const v1::AcquireSlotsRequest&, v1::AcquireSlotsResponse*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "2 slots are free, 3 were asked for");
  };
  absl::StatusOr<Session> session = Client::Connect(server.address())->OpenSession("model");
  const absl::Status status = session->AcquireSlots(3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "2 slots are free, 3 were asked for");
}

TEST(SessionTest, FailsWhereTheCacheGoesMeanwhile) {
  FakeServer server;
  absl::StatusOr<Client> client = Client::Connect(server.address());
  EXPECT_EQ(client->OpenSession("another").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace gdpcache
