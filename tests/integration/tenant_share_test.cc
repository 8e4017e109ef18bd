// What one of several tenants may use up of what all share.

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "tests/integration/access_support.h"
#include "tests/integration/half_sent_write.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"

namespace gdpcache {
namespace {

using test::ControlClient;
using ::testing::HasSubstr;

class TenantShareTest : public ::testing::Test {
 protected:
  template <typename Response>
  grpc::Status Call(const Person& person, const std::string& method, const google::protobuf::Message& request,
                    Response& response) const {
    const test::RawAnswer answer = test::CallRaw(channel_, absl::StrCat("/gdpcache.v1.StateCache/", method),
                                                 request.SerializeAsString(), person.metadata());
    EXPECT_TRUE(response.ParseFromString(answer.bytes));
    return answer.status;
  }

  grpc::Status Create(const Person& person, const std::string& name) const {
    v1::CreateCacheResponse response;
    return Call(person, "CreateCache", ControlClient::SmallCache(name), response);
  }

  /// A session with slots, and the first of them.
  struct Held {
    std::string session;
    std::int64_t slot = 0;
  };
  Held Hold(const Person& person, const std::string& cache, std::int64_t slots = 1) const {
    v1::OpenSessionRequest open;
    open.set_cache(cache);
    v1::OpenSessionResponse opened;
    EXPECT_TRUE(Call(person, "OpenSession", open, opened).ok());
    v1::AcquireSlotsRequest acquire;
    acquire.set_session(opened.session());
    acquire.set_count(slots);
    v1::AcquireSlotsResponse acquired;
    EXPECT_TRUE(Call(person, "AcquireSlots", acquire, acquired).ok());
    return {opened.session(), acquired.slots_size() == slots ? acquired.slots(0) : -1};
  }

  grpc::Status Reset(const Person& person, const Held& held) const {
    v1::ResetSlotsRequest request;
    request.set_session(held.session);
    request.add_slots(held.slot);
    v1::ResetSlotsResponse response;
    return Call(person, "ResetSlots", request, response);
  }

  static bool HasRetryInfo(const grpc::Status& status) {
    google::rpc::Status details;
    return details.ParseFromString(status.error_details()) && details.details_size() == 1 &&
           details.details(0).Is<google::rpc::RetryInfo>();
  }

  SecureServer server_{SecureServer::Transport::kLoopback,
                       {"--max-tenant-share=25", "--max-calls=12", "--max-caches=8", "--max-sessions=12",
                        "--state-memory=1MiB", "--snapshot-device-memory=2KiB"}};
  const std::shared_ptr<grpc::Channel> channel_ = server_.Connect();
};

TEST_F(TenantShareTest, OfTheCallsUnderWay) {
  ASSERT_TRUE(Create(kEngine, "model").ok());
  const Held busy = Hold(kEngine, "model", 3);  // 0, 1 and 2
  const Held idle = Hold(kEngine, "model");
  const Held others = Hold(kOtherEngine, "model");
  ControlClient client(channel_);
  std::list<test::HalfSentWrite> writes;  // a quarter of the calls
  for (int n = 0; n < 3; ++n) writes.emplace_back(client, busy.session, kEngine.metadata(), busy.slot + n);
  grpc::Status refused;
  ASSERT_TRUE(test::Eventually([&] { return !(refused = Reset(kEngine, idle)).ok(); }));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), "the tenant has 3 calls under way; one tenant may have at most 3");
  EXPECT_TRUE(HasRetryInfo(refused));
  EXPECT_TRUE(Reset(kOtherEngine, others).ok());
  v1::ReleaseSlotsRequest release;
  release.set_session(idle.session);
  release.add_slots(idle.slot);
  v1::ReleaseSlotsResponse released;
  EXPECT_TRUE(Call(kEngine, "ReleaseSlots", release, released).ok()) << "what gives back is not refused";
  for (test::HalfSentWrite& write : writes) EXPECT_TRUE(write.Finish().ok());
  EXPECT_TRUE(Reset(kEngine, busy).ok());
}

TEST_F(TenantShareTest, OfTheCachesAndSessions) {
  for (const char* name : {"a", "b"}) ASSERT_TRUE(Create(kEngine, name).ok());
  const grpc::Status refused = Create(kEngine, "c");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("the tenant has made 2 caches"));
  EXPECT_TRUE(HasRetryInfo(refused));
  EXPECT_TRUE(Create(kOtherEngine, "c").ok());

  for (int n = 0; n < 3; ++n) Hold(kEngine, "a");
  v1::OpenSessionRequest open;
  open.set_cache("a");
  v1::OpenSessionResponse opened;
  EXPECT_EQ(Call(kEngine, "OpenSession", open, opened).error_message(),
            "the tenant has 3 sessions; it may have at most 3");
  EXPECT_TRUE(Call(kOtherEngine, "OpenSession", open, opened).ok());
}

TEST_F(TenantShareTest, OfTheMemoryOfStates) {
  v1::CreateCacheRequest request = ControlClient::SmallCache("large");
  request.mutable_geometry()->set_layers(500);
  v1::CreateCacheResponse response;
  const grpc::Status refused = Call(kEngine, "CreateCache", request, response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("262144 of the tenant's 262144 bytes of state memory are free"));
  EXPECT_TRUE(Create(kEngine, "small").ok());
}

TEST_F(TenantShareTest, OfTheRoomOfUnfinishedSnapshots) {
  ASSERT_TRUE(Create(kEngine, "model").ok());
  const auto prefill = [&](const Person& person) {
    const Held held = Hold(person, "model");
    v1::PrefillRequest request;
    request.set_session(held.session);
    request.set_chunk_size(16);
    request.add_cu_seqlens(0);
    request.add_cu_seqlens(32);
    request.add_state_indices(held.slot);
    for (const auto& [tensor, columns] :
         {std::pair(request.mutable_k(), 4), {request.mutable_w(), 4}, {request.mutable_u(), 3}}) {
      tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
      for (const std::int64_t size : {1, 32, 2, columns}) tensor->add_shape(size);
      tensor->set_inline_(std::string(std::size_t{32} * 2 * 4 * static_cast<std::size_t>(columns), '\0'));
    }
    for (const char digit : {'1', '2'}) {
      v1::SnapshotDirective& directive = *request.add_snapshots();
      directive.set_boundary(digit - '0');
      directive.set_key(std::string(16, digit));
    }
    v1::PrefillResponse response;
    EXPECT_TRUE(Call(person, "Prefill", request, response).ok());
    return response.snapshots();
  };
  for (const Person& person : {kEngine, kOtherEngine}) {  // one layer of two
    const auto outcomes = prefill(person);
    ASSERT_EQ(outcomes.size(), 2) << person.name;
    EXPECT_EQ(outcomes[0].result(), v1::SNAPSHOT_RESULT_PENDING) << outcomes[0].message();
    EXPECT_EQ(outcomes[1].result(), v1::SNAPSHOT_RESULT_NO_SPACE);
    EXPECT_THAT(outcomes[1].message(), HasSubstr("unfinished ones of the tenant take 512 of the 512 bytes"));
  }
}

TEST_F(TenantShareTest, OfWhatMayBePinned) {
  ASSERT_TRUE(Create(kEngine, "model").ok());
  const Held held = Hold(kEngine, "model");
  v1::SaveSnapshotsRequest save;
  save.set_session(held.session);
  v1::PinSnapshotsRequest pin;
  pin.set_cache("model");
  for (const char digit : {'1', '2'}) {
    save.add_saves()->set_slot(held.slot);
    save.mutable_saves()->rbegin()->set_key(std::string(16, digit));
    pin.add_keys(std::string(16, digit));
  }
  v1::SaveSnapshotsResponse saved;
  ASSERT_TRUE(Call(kEngine, "SaveSnapshots", save, saved).ok());
  v1::PinSnapshotsResponse pinned;
  const grpc::Status refused = Call(kEngine, "PinSnapshots", pin, pinned);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), "the tenant's pin budget: 384 bytes are needed; 0 of 256 are in use");
}

TEST(TenantShare, IsAllWhereThereIsOneTenant) {
  const test::ServerProcess server({"--max-tenant-share=25", "--max-caches=4"});
  ControlClient client(test::Connect(server.tcp_address()));
  for (const char* name : {"a", "b", "c", "d"}) client.CreateCache(ControlClient::SmallCache(name));
}

}  // namespace
}  // namespace gdpcache
