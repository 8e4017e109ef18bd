#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/catalog.h"
#include "server/cache/errors.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/engine.h"
#include "server/rpc/control/caches.h"
#include "server/rpc/control/server_info.h"
#include "server/rpc/control/sessions.h"
#include "server/rpc/control/slots.h"
#include "tests/support/heap_backend.h"
#include "tests/support/manual_clock.h"

namespace gdpcache::rpc {
namespace {

using ::testing::SizeIs;

v1::CreateCacheRequest SmallCache() {
  v1::CreateCacheRequest request;
  request.set_name("a");
  request.mutable_geometry()->set_layers(2);
  request.mutable_geometry()->set_slots(4);
  request.mutable_geometry()->set_heads(1);
  request.mutable_geometry()->set_key_dim(8);
  request.mutable_geometry()->set_value_dim(8);
  return request;
}

class ControlTest : public ::testing::Test {
 protected:
  static cache::CatalogLimits Limits() {
    cache::CatalogLimits limits;
    limits.max_caches = 2;
    limits.max_sessions = 10;
    limits.state_memory_bytes = 1 << 20;
    limits.default_session_ttl = absl::Seconds(60);
    limits.max_session_ttl = absl::Hours(1);
    return limits;
  }

  std::vector<cache::StoreTier> Tiers() {
    std::vector<cache::StoreTier> tiers;
    tiers.push_back({std::make_unique<cache::MemoryTier>(backend_, cache::TierKind::kHost, 1 << 20), 1 << 20, 1 << 20});
    return tiers;
  }

  std::string Open() {
    v1::OpenSessionRequest request;
    request.set_cache("a");
    request.set_client_name("unit test");
    v1::OpenSessionResponse response;
    EXPECT_TRUE(OpenSession(catalog_, expiry_, "default", request, response).ok());
    return response.session();
  }

  test::HeapBackend backend_;
  test::ManualClock clock_;
  cache::Catalog catalog_{backend_, clock_, Limits()};
  std::unique_ptr<cache::SnapshotStore> snapshots_ =
      cache::SnapshotStore::Create(backend_, clock_, Tiers(), {}).value();
  std::unique_ptr<engine::Engine> engine_ = engine::Engine::Create(backend_, {}).value();
  DeadlineThread expiry_{clock_, [this] { return catalog_.ExpireSessions(); }};
};

TEST_F(ControlTest, DefaultsOfAGeometryAreFilledIn) {
  const absl::StatusOr<cache::CacheSpec> spec = DecodeCacheSpec(SmallCache());
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->geometry.num_householder, 1);
  EXPECT_EQ(spec->geometry.state_dtype, kernels::DataType::kFloat32);
}

TEST_F(ControlTest, UnknownElementTypesAreRefused) {
  v1::CreateCacheRequest request = SmallCache();
  for (const int dtype : {4, 5, -1, 1 << 30}) {
    request.mutable_geometry()->set_state_dtype(static_cast<v1::DataType>(dtype));
    const absl::Status status = DecodeCacheSpec(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << dtype;
    EXPECT_EQ(cache::FieldViolationOf(status)->field, "geometry.state_dtype");
  }
}

TEST_F(ControlTest, ACacheSurvivesTheWayThroughTheProtocol) {
  v1::CreateCacheRequest request = SmallCache();
  request.set_fingerprint("model@1");
  request.set_ephemeral(true);
  request.mutable_geometry()->set_num_householder(3);
  request.mutable_geometry()->set_state_dtype(v1::DATA_TYPE_FLOAT16);
  request.mutable_geometry()->set_auxiliary_bytes(5);
  v1::CreateCacheResponse response;
  ASSERT_TRUE(CreateCache(catalog_, /*tenant=*/"", request, response).ok());
  EXPECT_TRUE(response.created());
  EXPECT_EQ(response.cache().geometry().SerializeAsString(), request.geometry().SerializeAsString());
  EXPECT_EQ(response.cache().fingerprint(), "model@1");
  EXPECT_TRUE(response.cache().ephemeral());
  EXPECT_EQ(response.cache().memory_bytes(), 2 * 4 * (8 * 8 * 2 + 5));
}

TEST_F(ControlTest, ClosingAnswersOnceWithEitherOutcome) {
  v1::CreateCacheResponse created;
  ASSERT_TRUE(CreateCache(catalog_, /*tenant=*/"", SmallCache(), created).ok());
  v1::CloseSessionRequest request;
  request.set_session(Open());
  std::vector<absl::StatusCode> answers;
  for (int n = 0; n < 2; ++n) {
    CloseSession(catalog_, "default", request,
                 [&answers](const absl::Status& status) { answers.push_back(status.code()); });
  }
  EXPECT_THAT(answers, ::testing::ElementsAre(absl::StatusCode::kOk, absl::StatusCode::kNotFound));
}

TEST_F(ControlTest, DeletingAnswersOnceWithEitherOutcome) {
  v1::CreateCacheResponse created;
  ASSERT_TRUE(CreateCache(catalog_, /*tenant=*/"", SmallCache(), created).ok());
  v1::DeleteCacheRequest request;
  request.set_name("a");
  std::vector<absl::StatusCode> answers;
  for (int n = 0; n < 2; ++n) {
    DeleteCache(catalog_, request, [&answers](const absl::Status& status) { answers.push_back(status.code()); });
  }
  EXPECT_THAT(answers, ::testing::ElementsAre(absl::StatusCode::kOk, absl::StatusCode::kNotFound));
}

TEST_F(ControlTest, KeepAliveRenewsTheLease) {
  v1::CreateCacheResponse created;
  ASSERT_TRUE(CreateCache(catalog_, /*tenant=*/"", SmallCache(), created).ok());
  v1::KeepAliveRequest request;
  request.set_session(Open());
  v1::KeepAliveResponse response;
  for (int n = 0; n < 3; ++n) {
    clock_.Advance(absl::Seconds(59));
    ASSERT_TRUE(KeepAlive(catalog_, "default", request, response).ok());
    EXPECT_EQ(response.ttl_ms(), 60'000);
  }
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(KeepAlive(catalog_, "default", request, response).code(), absl::StatusCode::kNotFound);
}

/// Answers are not counted.
absl::Status ForNothing(std::int64_t /*bytes*/) { return absl::OkStatus(); }

TEST_F(ControlTest, AListOfSlotsIsNotMadeWhereThereIsNoRoomForIt) {
  v1::CreateCacheResponse created;
  ASSERT_TRUE(CreateCache(catalog_, /*tenant=*/"", SmallCache(), created).ok());
  const std::shared_ptr<cache::Session> session = catalog_.FindSession(Open(), cache::kDefaultTenant).value();
  ASSERT_TRUE(session->cache()->slots().Acquire(session->key(), 2).ok());
  v1::ListSlotsRequest request;
  request.set_cache("a");
  v1::ListSlotsResponse response;
  std::int64_t charged = 0;
  const auto refuse = [&charged](std::int64_t bytes) {
    charged = bytes;
    return absl::ResourceExhaustedError("full");
  };
  EXPECT_EQ(ListSlots(catalog_, clock_, "default", false, request, refuse, response).message(), "full");
  EXPECT_EQ(response.ByteSizeLong(), 0u);
  ASSERT_TRUE(ListSlots(catalog_, clock_, "default", false, request, ForNothing, response).ok());
  EXPECT_GE(charged, static_cast<std::int64_t>(response.ByteSizeLong()));
}

TEST_F(ControlTest, ListedSlotsTellWhoHoldsThemAndForHowLong) {
  v1::CreateCacheResponse created;
  ASSERT_TRUE(CreateCache(catalog_, /*tenant=*/"", SmallCache(), created).ok());
  const std::shared_ptr<cache::Session> session = catalog_.FindSession(Open(), cache::kDefaultTenant).value();
  cache::SlotTable& slots = session->cache()->slots();
  ASSERT_TRUE(slots.Acquire(session->key(), 2).ok());
  slots.SetPosition(0, 1, 128);
  slots.SetPosition(1, 1, 64);
  clock_.Advance(absl::Seconds(20));
  v1::ListSlotsRequest request;
  request.set_cache("a");
  v1::ListSlotsResponse response;
  ASSERT_TRUE(ListSlots(catalog_, clock_, "default", false, request, ForNothing, response).ok());
  EXPECT_EQ(response.free_slots(), 2);
  ASSERT_THAT(response.slots(), SizeIs(2));
  EXPECT_EQ(response.slots(1).slot(), 1);
  EXPECT_EQ(response.slots(1).client_name(), "unit test");
  EXPECT_EQ(response.slots(1).min_position(), 64);
  EXPECT_EQ(response.slots(1).max_position(), 128);
  EXPECT_EQ(response.slots(1).session_expires_in_ms(), 40'000);
}

TEST_F(ControlTest, SlotsOfOtherTenantsAreShownToWhomTheyConcern) {
  v1::CreateCacheResponse created;
  ASSERT_TRUE(CreateCache(catalog_, /*tenant=*/"", SmallCache(), created).ok());
  for (const char* tenant : {"one", "two"}) {
    const auto session = catalog_.OpenSession("a", absl::ZeroDuration(), tenant, tenant);
    ASSERT_TRUE((*session)->cache()->slots().Acquire((*session)->key(), 1).ok());
  }
  v1::ListSlotsRequest request;
  request.set_cache("a");
  const auto seen_by = [&](const std::string& tenant, bool everybody) {
    v1::ListSlotsResponse response;
    EXPECT_TRUE(ListSlots(catalog_, clock_, tenant, everybody, request, ForNothing, response).ok());
    EXPECT_EQ(response.free_slots(), 2);
    std::vector<std::string> names;
    for (const v1::SlotInfo& slot : response.slots()) names.push_back(slot.client_name());
    return names;
  };
  EXPECT_THAT(seen_by("one", false), ::testing::ElementsAre("one"));
  EXPECT_THAT(seen_by("two", false), ::testing::ElementsAre("two"));
  EXPECT_THAT(seen_by("three", false), ::testing::IsEmpty());
  EXPECT_THAT(seen_by("three", true), ::testing::ElementsAre("one", "two"));
}

TEST_F(ControlTest, SlotCallsOfUnknownSessionsAreNotPrepared) {
  const auto never = [](const absl::Status&) { ADD_FAILURE() << "nothing was started"; };
  v1::AcquireSlotsResponse acquired;
  const CallOrigin origin = {"default", absl::InfiniteFuture()};
  EXPECT_EQ(AcquireSlots(catalog_, *engine_, origin, {}, acquired, never).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReleaseSlots(catalog_, *engine_, origin, {}, never).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ResetSlots(catalog_, *engine_, origin, {}, never).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CopySlots(catalog_, *engine_, origin, {}, never).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ControlTest, TheServerTellsItsUptimeAndAddresses) {
  ServerInfo info(catalog_, *engine_, *snapshots_, clock_, "1.2.3", {}, backend_.device_info(), {});
  info.SetAddresses({"127.0.0.1:1", "unix:/a"});
  clock_.Advance(absl::Seconds(5));
  v1::GetServerInfoResponse response;
  info.Fill(response);
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.device(), "test heap");
  EXPECT_EQ(response.uptime_ms(), 5'000);
  EXPECT_THAT(response.addresses(), ::testing::ElementsAre("127.0.0.1:1", "unix:/a"));
  ASSERT_THAT(response.snapshot_tiers(), SizeIs(1));
  EXPECT_EQ(response.snapshot_tiers(0).tier(), v1::SNAPSHOT_TIER_HOST);
  EXPECT_EQ(response.snapshot_tiers(0).capacity_bytes(), 1 << 20);
}

}  // namespace
}  // namespace gdpcache::rpc
