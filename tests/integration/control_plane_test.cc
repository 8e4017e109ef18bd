// Every control call through the running server, over TCP and the Unix socket.

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"
#include "tests/support/status_details.h"

namespace gdpcache {
namespace {

using test::ControlClient;
using test::DetailOf;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;
using Stub = v1::StateCache::Stub;

enum class Transport { kTcp, kUnix };

class ControlPlaneTest : public ::testing::TestWithParam<Transport> {
 protected:
  std::shared_ptr<grpc::Channel> NewChannel() const {
    return test::Connect(GetParam() == Transport::kTcp ? server_.tcp_address() : server_.unix_address());
  }

  grpc::Status DeleteCache(const std::string& name, bool force = false) {
    v1::DeleteCacheRequest request;
    request.set_name(name);
    request.set_force(force);
    return client_.Call(&Stub::DeleteCache, request);
  }

  grpc::Status KeepAlive(const std::string& session) {
    v1::KeepAliveRequest request;
    request.set_session(session);
    return client_.Call(&Stub::KeepAlive, request);
  }

  grpc::Status CloseSession(const std::string& session) {
    v1::CloseSessionRequest request;
    request.set_session(session);
    return client_.Call(&Stub::CloseSession, request);
  }

  grpc::Status ReleaseSlots(const std::string& session, const std::vector<std::int64_t>& slots) {
    v1::ReleaseSlotsRequest request;
    request.set_session(session);
    request.mutable_slots()->Add(slots.begin(), slots.end());
    return client_.Call(&Stub::ReleaseSlots, request);
  }

  grpc::Status ResetSlots(const std::string& session, const std::vector<std::int64_t>& slots) {
    v1::ResetSlotsRequest request;
    request.set_session(session);
    request.mutable_slots()->Add(slots.begin(), slots.end());
    return client_.Call(&Stub::ResetSlots, request);
  }

  grpc::Status CopySlots(const std::string& session, std::int64_t source, const std::vector<std::int64_t>& slots) {
    v1::CopySlotsRequest request;
    request.set_session(session);
    v1::SlotCopy& copy = *request.add_copies();
    copy.set_source(source);
    copy.mutable_destinations()->Add(slots.begin(), slots.end());
    return client_.Call(&Stub::CopySlots, request);
  }

  grpc::Status AcquireSlots(const std::string& session, std::int64_t count) {
    v1::AcquireSlotsRequest request;
    request.set_session(session);
    request.set_count(count);
    return client_.Call(&Stub::AcquireSlots, request);
  }

  grpc::Status OpenSession(const std::string& cache, std::int64_t ttl_ms, const std::string& client_name) {
    v1::OpenSessionRequest request;
    request.set_cache(cache);
    request.set_ttl_ms(ttl_ms);
    request.set_client_name(client_name);
    return client_.Call(&Stub::OpenSession, request);
  }

  grpc::Status CreateCache(const v1::CreateCacheRequest& request) { return client_.Call(&Stub::CreateCache, request); }

  static std::string FieldOf(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return DetailOf<google::rpc::BadRequest>(status).field_violations(0).field();
  }

  test::ServerProcess server_{
      {"--state-memory=64MiB", "--staging-memory=32MiB", "--max-caches=3", "--max-sessions=5", "--max-session-ttl=1h"}};
  ControlClient client_{NewChannel()};
};

INSTANTIATE_TEST_SUITE_P(Transports, ControlPlaneTest, ::testing::Values(Transport::kTcp, Transport::kUnix),
                         [](const auto& transport) { return transport.param == Transport::kTcp ? "Tcp" : "Unix"; });

TEST_P(ControlPlaneTest, TheServerDescribesItself) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  const v1::GetServerInfoResponse info = client_.GetServerInfo();
  EXPECT_THAT(info.version(), MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_EQ(info.backend(), "cpu");
  EXPECT_THAT(info.device(), HasSubstr("thread"));
  EXPECT_GT(info.device_memory_bytes(), 64 << 20);
  EXPECT_GE(info.state_memory_used_bytes(), 2 * 8 * 2 * 4 * 3 * 4);
  EXPECT_EQ(info.staging_used_bytes(), 0);
  EXPECT_EQ(info.limits().max_message_bytes(), 16 << 20);
  EXPECT_EQ(info.limits().state_memory_bytes(), 64 << 20);
  EXPECT_EQ(info.limits().staging_bytes(), 32 << 20);
  EXPECT_EQ(info.limits().max_caches(), 3);
  EXPECT_EQ(info.limits().max_sessions(), 5);
  EXPECT_EQ(info.limits().max_sequences_per_call(), 65'536);
  EXPECT_EQ(info.limits().max_session_ttl_ms(), 3'600'000);
  EXPECT_THAT(info.addresses(), ElementsAre(server_.tcp_address(), server_.unix_address()));
  EXPECT_THAT(info.transports(), ElementsAre("inline", "stream", "shared_memory"));
  ASSERT_THAT(info.caches(), SizeIs(1));
  EXPECT_EQ(info.caches(0).name(), "a");
  EXPECT_GE(info.uptime_ms(), 0);
}

TEST_P(ControlPlaneTest, CachesAreCreatedSharedListedAndDeleted) {
  v1::CreateCacheRequest request = ControlClient::SmallCache("models/b");
  request.mutable_geometry()->set_state_dtype(v1::DATA_TYPE_BFLOAT16);
  request.mutable_geometry()->set_auxiliary_bytes(10);
  const v1::CreateCacheResponse created = client_.CreateCache(request);
  EXPECT_TRUE(created.created());
  EXPECT_EQ(created.cache().name(), "models/b");
  EXPECT_EQ(created.cache().geometry().layers(), 2);
  EXPECT_EQ(created.cache().geometry().slots(), 8);
  EXPECT_EQ(created.cache().geometry().heads(), 2);
  EXPECT_EQ(created.cache().geometry().key_dim(), 4);
  EXPECT_EQ(created.cache().geometry().value_dim(), 3);
  EXPECT_EQ(created.cache().geometry().num_householder(), 1) << "0 means 1";
  EXPECT_EQ(created.cache().geometry().state_dtype(), v1::DATA_TYPE_BFLOAT16);
  EXPECT_EQ(created.cache().geometry().auxiliary_bytes(), 10);
  EXPECT_EQ(created.cache().fingerprint(), "model@1");
  EXPECT_FALSE(created.cache().ephemeral());
  EXPECT_EQ(created.cache().free_slots(), 8);
  EXPECT_EQ(created.cache().held_slots(), 0);
  EXPECT_EQ(created.cache().sessions(), 0);
  EXPECT_EQ(created.cache().memory_bytes(), 2 * 8 * (2 * 4 * 3 * 2 + 10));

  client_.AcquireSlots(client_.OpenSession("models/b"), 3);
  const v1::CreateCacheResponse shared = client_.CreateCache(request);
  EXPECT_FALSE(shared.created());
  EXPECT_EQ(shared.cache().sessions(), 1);

  client_.CreateCache(ControlClient::SmallCache("a"));
  EXPECT_EQ(client_.CreateCache(ControlClient::SmallCache("a")).cache().geometry().state_dtype(),
            v1::DATA_TYPE_FLOAT32);
  v1::ListCachesResponse list;
  ASSERT_TRUE(client_.Call(&Stub::ListCaches, v1::ListCachesRequest(), list).ok());
  ASSERT_THAT(list.caches(), SizeIs(2));
  EXPECT_EQ(list.caches(0).name(), "a");
  EXPECT_EQ(list.caches(1).name(), "models/b");
  EXPECT_EQ(list.caches(1).free_slots(), 5);
  EXPECT_EQ(list.caches(1).held_slots(), 3);

  EXPECT_TRUE(DeleteCache("a").ok());
  EXPECT_TRUE(DeleteCache("models/b", /*force=*/true).ok());
  const v1::GetServerInfoResponse info = client_.GetServerInfo();
  EXPECT_THAT(info.caches(), SizeIs(0));
  EXPECT_EQ(info.state_memory_used_bytes(), 0);
}

TEST_P(ControlPlaneTest, SlotsAreAcquiredListedResetCopiedAndReleased) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  const std::string session = client_.OpenSession("a", 60'000, "engine 7");
  EXPECT_THAT(client_.AcquireSlots(session, 3), ElementsAre(0, 1, 2));
  const v1::ListSlotsResponse list = client_.ListSlots("a");
  EXPECT_EQ(list.free_slots(), 5);
  ASSERT_THAT(list.slots(), SizeIs(3));
  EXPECT_EQ(list.slots(2).slot(), 2);
  EXPECT_EQ(list.slots(2).client_name(), "engine 7");
  EXPECT_EQ(list.slots(2).min_position(), 0);
  EXPECT_EQ(list.slots(2).max_position(), 0);
  EXPECT_GT(list.slots(2).session_expires_in_ms(), 0);
  EXPECT_LE(list.slots(2).session_expires_in_ms(), 60'000);
  EXPECT_THAT(list.DebugString(), ::testing::Not(HasSubstr(session))) << "the id is a secret";

  EXPECT_TRUE(ResetSlots(session, {0, 2}).ok());
  EXPECT_TRUE(CopySlots(session, 0, {1, 2}).ok());
  EXPECT_TRUE(ReleaseSlots(session, {1}).ok());
  EXPECT_EQ(client_.ListSlots("a").free_slots(), 6);
  EXPECT_THAT(client_.AcquireSlots(session, 2), ElementsAre(1, 3));
  EXPECT_TRUE(CloseSession(session).ok());
  EXPECT_EQ(client_.ListSlots("a").free_slots(), 8);
}

TEST_P(ControlPlaneTest, SessionsAreOpenedKeptAliveAndClosed) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  v1::OpenSessionRequest open;
  open.set_cache("a");
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(client_.Call(&Stub::OpenSession, open, opened).ok());
  EXPECT_THAT(opened.session(), MatchesRegex("[0-9a-f]+"));
  EXPECT_THAT(opened.session(), SizeIs(32));
  EXPECT_EQ(opened.ttl_ms(), 60'000);
  v1::KeepAliveRequest keep;
  keep.set_session(opened.session());
  v1::KeepAliveResponse kept;
  ASSERT_TRUE(client_.Call(&Stub::KeepAlive, keep, kept).ok());
  EXPECT_EQ(kept.ttl_ms(), 60'000);
  EXPECT_TRUE(CloseSession(opened.session()).ok());
  EXPECT_EQ(KeepAlive(opened.session()).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_P(ControlPlaneTest, AnEphemeralCacheGoesWithItsLastSession) {
  v1::CreateCacheRequest request = ControlClient::SmallCache("tmp");
  request.set_ephemeral(true);
  EXPECT_TRUE(client_.CreateCache(request).cache().ephemeral());
  const std::string session = client_.OpenSession("tmp");
  client_.AcquireSlots(session, 2);
  EXPECT_TRUE(CloseSession(session).ok());
  EXPECT_THAT(client_.GetServerInfo().caches(), SizeIs(0));
}

TEST_P(ControlPlaneTest, UnknownNamesAreNotFound) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  const std::string nobody(32, '0');
  for (const grpc::Status& status : {KeepAlive(nobody), CloseSession(nobody), AcquireSlots(nobody, 1),
                                     ReleaseSlots(nobody, {0}), ResetSlots(nobody, {0}), CopySlots(nobody, 0, {1})}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
    EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status).resource_type(), "session");
  }
  v1::ListSlotsRequest list;
  list.set_cache("b");
  for (const grpc::Status& status : {DeleteCache("b"), OpenSession("b", 0, ""), client_.Call(&Stub::ListSlots, list)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
    const auto detail = DetailOf<google::rpc::ResourceInfo>(status);
    EXPECT_EQ(detail.resource_type(), "cache");
    EXPECT_EQ(detail.resource_name(), "b");
  }
}

TEST_P(ControlPlaneTest, AnotherCacheOfTheNameAlreadyExists) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  v1::CreateCacheRequest other = ControlClient::SmallCache("a", 16);
  other.mutable_geometry()->set_num_householder(3);
  const grpc::Status status = CreateCache(other);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("slots is 8, not 16"), HasSubstr("num_householder is 1, not 3")));
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status).resource_name(), "a");
}

TEST_P(ControlPlaneTest, FieldsOutOfRangeAreNamed) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  const std::string session = client_.OpenSession("a");
  client_.AcquireSlots(session, 2);

  v1::CreateCacheRequest cache = ControlClient::SmallCache("b");
  cache.mutable_geometry()->set_key_dim(257);
  EXPECT_EQ(FieldOf(CreateCache(cache)), "geometry.key_dim");
  cache = ControlClient::SmallCache("b");
  cache.mutable_geometry()->set_state_dtype(v1::DATA_TYPE_UINT8);
  EXPECT_EQ(FieldOf(CreateCache(cache)), "geometry.state_dtype");
  cache.mutable_geometry()->set_state_dtype(static_cast<v1::DataType>(99));
  EXPECT_EQ(FieldOf(CreateCache(cache)), "geometry.state_dtype");
  cache = ControlClient::SmallCache("b");
  cache.clear_geometry();
  EXPECT_EQ(FieldOf(CreateCache(cache)), "geometry.layers");
  cache = ControlClient::SmallCache("b");
  cache.set_fingerprint(std::string(1'025, 'f'));
  EXPECT_EQ(FieldOf(CreateCache(cache)), "fingerprint");

  EXPECT_EQ(FieldOf(OpenSession("a", 99, "")), "ttl_ms");
  EXPECT_EQ(FieldOf(OpenSession("a", 3'600'001, "")), "ttl_ms");
  EXPECT_EQ(FieldOf(OpenSession("a", 0, std::string(129, 'c'))), "client_name");
  EXPECT_EQ(FieldOf(AcquireSlots(session, 0)), "count");
  EXPECT_EQ(FieldOf(ReleaseSlots(session, {0, 8})), "slots[1]");
  EXPECT_EQ(FieldOf(ReleaseSlots(session, {0, -1})), "slots[1]");
  EXPECT_EQ(FieldOf(ReleaseSlots(session, {0, 0})), "slots[1]");
  EXPECT_EQ(FieldOf(ResetSlots(session, {1, 0, 1})), "slots[2]");
  EXPECT_EQ(FieldOf(CopySlots(session, 8, {0})), "copies[0].source");
  EXPECT_EQ(FieldOf(CopySlots(session, 0, {8})), "copies[0].destinations[0]");
  EXPECT_EQ(client_.ListSlots("a").free_slots(), 6) << "nothing was released";
}

TEST_P(ControlPlaneTest, AnothersSlotsAreDenied) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  const std::string mine = client_.OpenSession("a");
  const std::string other = client_.OpenSession("a");
  client_.AcquireSlots(mine, 2);
  client_.AcquireSlots(other, 1);
  for (const grpc::Status& status : {ReleaseSlots(mine, {0, 2}), ResetSlots(mine, {2}), CopySlots(mine, 2, {0}),
                                     CopySlots(mine, 0, {2}), ReleaseSlots(mine, {7})}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
    EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status).resource_type(), "slot");
  }
  EXPECT_EQ(client_.ListSlots("a").free_slots(), 5) << "nothing was released";
}

TEST_P(ControlPlaneTest, LimitsAreExhaustedWithAHintWhenToRetry) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  const std::string session = client_.OpenSession("a");
  client_.AcquireSlots(session, 6);
  const grpc::Status slots = AcquireSlots(session, 3);
  EXPECT_THAT(slots.error_message(), HasSubstr("2 of the cache's 8 slots are free"));
  EXPECT_EQ(client_.ListSlots("a").free_slots(), 2) << "all or none";

  for (int n = 0; n < 4; ++n) client_.OpenSession("a");
  const grpc::Status sessions = OpenSession("a", 0, "");

  v1::CreateCacheRequest large = ControlClient::SmallCache("large", 1'000'000);
  large.mutable_geometry()->set_layers(1);
  large.mutable_geometry()->set_heads(1);
  large.mutable_geometry()->set_key_dim(1);
  large.mutable_geometry()->set_value_dim(1);
  EXPECT_EQ(CreateCache(large).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << "its bookkeeping counts";
  large = ControlClient::SmallCache("large", 8'000);
  large.mutable_geometry()->set_key_dim(128);
  client_.CreateCache(large);
  large.set_name("second");
  const grpc::Status memory = CreateCache(large);

  client_.CreateCache(ControlClient::SmallCache("c"));
  const grpc::Status caches = CreateCache(ControlClient::SmallCache("d"));

  for (const grpc::Status& status : {slots, sessions, memory, caches}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    const auto delay = DetailOf<google::rpc::RetryInfo>(status).retry_delay();
    EXPECT_GT(delay.seconds() * 1'000'000'000 + delay.nanos(), 0);
  }
}

TEST_P(ControlPlaneTest, OpenSessionsKeepACache) {
  client_.CreateCache(ControlClient::SmallCache("a"));
  const std::string session = client_.OpenSession("a");
  const grpc::Status status = DeleteCache("a");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("has 1 open session; close"));
  EXPECT_TRUE(CloseSession(session).ok());
  EXPECT_TRUE(DeleteCache("a").ok());
}

TEST_P(ControlPlaneTest, HealthIsReportedForTheServerAndTheService) {
  const std::shared_ptr<grpc::Channel> channel = NewChannel();
  EXPECT_EQ(test::CheckHealth(channel, ""), 1);
  EXPECT_EQ(test::CheckHealth(channel, "gdpcache.v1.StateCache"), 1);
  EXPECT_EQ(test::CheckHealth(channel, "another.Service"), -1);
}

TEST_P(ControlPlaneTest, ReflectionListsTheService) {
  // ServerReflectionRequest { string list_services = 7; }
  const test::RawAnswer answer =
      test::CallRaw(NewChannel(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {"\x3a\x00", 2});
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(answer.bytes, AllOf(HasSubstr("gdpcache.v1.StateCache"), HasSubstr("grpc.health.v1.Health")));
}

TEST_P(ControlPlaneTest, ReflectionDescribesTheServiceAndItsMessages) {
  // ServerReflectionRequest { string file_containing_symbol = 4; }; the answer holds the file and those it imports.
  const test::RawAnswer answer = test::CallRaw(
      NewChannel(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x22\x16gdpcache.v1.StateCache");
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(answer.bytes, AllOf(HasSubstr("PrefillStream"), HasSubstr("state_indices")));
}

}  // namespace
}  // namespace gdpcache
