// Whatever a client sends, it gets an error and the server lives.

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/loopback.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"

namespace gdpcache {
namespace {

using test::ControlClient;
using Stub = v1::StateCache::Stub;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kHuge = std::int64_t{1} << 62;

class HostileInputTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(test::CheckHealth(test::Connect(server_.tcp_address()), ""), 1) << "the server must live";
    client_.CreateCache(ControlClient::SmallCache("still-here"));
    EXPECT_EQ(client_.AcquireSlots(client_.OpenSession("still-here"), 8).size(), 8u);
  }

  test::ServerProcess server_{{"--state-memory=64MiB"}};
  std::shared_ptr<grpc::Channel> channel_ = test::Connect(server_.tcp_address());
  ControlClient client_{channel_};
};

TEST_F(HostileInputTest, NamesWithForeignCharactersAreRefused) {
  for (const std::string& name :
       {std::string("a\0b", 3), std::string("../../etc/passwd\n"), std::string("a\\b"), std::string("\xe2\x98\x83"),
        std::string(1 << 20, 'a'), std::string(), std::string("%s%n")}) {
    EXPECT_EQ(client_.Call(&Stub::CreateCache, ControlClient::SmallCache(name)).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    v1::OpenSessionRequest open;
    open.set_cache(name);
    EXPECT_EQ(client_.Call(&Stub::OpenSession, open).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    v1::DeleteCacheRequest remove;
    remove.set_name(name);
    EXPECT_EQ(client_.Call(&Stub::DeleteCache, remove).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    v1::ListSlotsRequest list;
    list.set_cache(name);
    EXPECT_EQ(client_.Call(&Stub::ListSlots, list).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    v1::KeepAliveRequest keep;
    keep.set_session(name);
    EXPECT_EQ(client_.Call(&Stub::KeepAlive, keep).error_code(), grpc::StatusCode::NOT_FOUND);
  }
}

TEST_F(HostileInputTest, AbsurdGeometriesAreRefused) {
  using Setter = void (v1::CacheGeometry::*)(std::int64_t);
  for (const Setter setter :
       {static_cast<Setter>(&v1::CacheGeometry::set_layers), static_cast<Setter>(&v1::CacheGeometry::set_slots),
        static_cast<Setter>(&v1::CacheGeometry::set_heads), static_cast<Setter>(&v1::CacheGeometry::set_key_dim),
        static_cast<Setter>(&v1::CacheGeometry::set_value_dim),
        static_cast<Setter>(&v1::CacheGeometry::set_num_householder),
        static_cast<Setter>(&v1::CacheGeometry::set_auxiliary_bytes)}) {
    for (const std::int64_t value : {kMin, std::int64_t{-1}, kHuge, kMax}) {
      v1::CreateCacheRequest request = ControlClient::SmallCache("absurd");
      (request.mutable_geometry()->*setter)(value);
      EXPECT_EQ(client_.Call(&Stub::CreateCache, request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    }
  }
  // Each in range, all together far beyond any memory.
  v1::CreateCacheRequest request = ControlClient::SmallCache("absurd", 16'777'216);
  request.mutable_geometry()->set_layers(65'536);
  request.mutable_geometry()->set_heads(1'024);
  request.mutable_geometry()->set_key_dim(256);
  request.mutable_geometry()->set_value_dim(1'024);
  EXPECT_EQ(client_.Call(&Stub::CreateCache, request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // As many tiny states as fit into the memory only if nobody counts what goes with them.
  request.mutable_geometry()->set_layers(1);
  request.mutable_geometry()->set_heads(1);
  request.mutable_geometry()->set_key_dim(1);
  request.mutable_geometry()->set_value_dim(1);
  request.mutable_geometry()->set_state_dtype(v1::DATA_TYPE_BFLOAT16);
  EXPECT_EQ(client_.Call(&Stub::CreateCache, request).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(HostileInputTest, AbsurdCountsAndSlotsAreRefused) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  const std::string session = client_.OpenSession("a");
  client_.AcquireSlots(session, 4);
  for (const std::int64_t value : {kMin, std::int64_t{-1}, std::int64_t{8}, kHuge, kMax}) {
    v1::AcquireSlotsRequest acquire;
    acquire.set_session(session);
    acquire.set_count(value);
    EXPECT_FALSE(client_.Call(&Stub::AcquireSlots, acquire).ok()) << value;
    v1::ResetSlotsRequest reset;
    reset.set_session(session);
    reset.add_slots(value);
    EXPECT_EQ(client_.Call(&Stub::ResetSlots, reset).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    v1::CopySlotsRequest copy;
    copy.set_session(session);
    copy.add_copies()->set_source(value);
    copy.mutable_copies(0)->add_destinations(0);
    EXPECT_EQ(client_.Call(&Stub::CopySlots, copy).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    copy.mutable_copies(0)->set_source(0);
    copy.mutable_copies(0)->set_destinations(0, value);
    EXPECT_EQ(client_.Call(&Stub::CopySlots, copy).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    v1::OpenSessionRequest open;
    open.set_cache("a");
    open.set_ttl_ms(value);
    EXPECT_EQ(client_.Call(&Stub::OpenSession, open).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  v1::ReleaseSlotsRequest release;
  release.set_session(session);
  for (int n = 0; n < 1'000'000; ++n) release.add_slots(n % 4);
  EXPECT_EQ(client_.Call(&Stub::ReleaseSlots, release).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client_.ListSlots("a").free_slots(), 4);
}

TEST_F(HostileInputTest, BytesThatAreNoMessageAreAnError) {
  std::mt19937 random(7);
  for (const char* method :
       {"CreateCache", "OpenSession", "AcquireSlots", "CopySlots", "GetServerInfo", "SaveSnapshots", "LookupPrefix",
        "RestoreSnapshots", "PinSnapshots", "UnpinSnapshots", "DeleteSnapshots", "ListSnapshots", "WatchSnapshots",
        "ReadSnapshot", "WriteSnapshot", "QueryWriteStatus"}) {
    for (int n = 0; n < 20; ++n) {
      std::string bytes(1 + random() % 200, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      bytes[0] = '\x07';  // a wire type that does not exist
      EXPECT_FALSE(test::CallRaw(channel_, std::string("/gdpcache.v1.StateCache/") + method, bytes).status.ok())
          << method;
    }
  }
  EXPECT_EQ(test::CallRaw(channel_, "/gdpcache.v1.StateCache/NoSuchMethod", "").status.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(HostileInputTest, MessagesOfTooManyPartsAreRefusedByEveryMethod) {
  std::string bytes;
  while (bytes.size() < (15 << 20)) bytes += "\xf8\x07\x01";  // a field that nobody knows
  for (const char* method : {"CreateCache", "ListCaches", "KeepAlive", "ReleaseSlots", "Prefill", "LookupPrefix",
                             "RegisterSystemMemory", "ReadSlots", "WatchSnapshots"}) {
    const grpc::Status status = test::CallRaw(channel_, std::string("/gdpcache.v1.StateCache/") + method, bytes).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), testing::HasSubstr("so many parts")) << method;
  }
  std::string frame("\x0a\x80\x80\xc0\x07", 5);  // a header, of 15 MiB
  frame += bytes;
  for (const char* method : {"PrefillStream", "WriteSlots", "WriteSnapshot"}) {
    const grpc::Status status = test::CallRaw(channel_, std::string("/gdpcache.v1.StateCache/") + method, frame).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), testing::HasSubstr("so many parts")) << method;
  }
}

TEST_F(HostileInputTest, MessagesBeyondTheLimitAreRefused) {
  EXPECT_EQ(
      test::CallRaw(channel_, "/gdpcache.v1.StateCache/CreateCache", std::string(17 << 20, 'x')).status.error_code(),
      grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(HostileInputTest, BytesThatAreNotEvenHttpAreIgnored) {
  std::mt19937 random(7);
  for (int n = 0; n < 20; ++n) {
    const int connection = test::ConnectRaw(server_.tcp_address());
    ASSERT_GE(connection, 0);
    std::string bytes(random() % 10'000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(connection);
  }
}

}  // namespace
}  // namespace gdpcache
