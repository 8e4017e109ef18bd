#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/rpc/control/snapshots.h"
#include "server/rpc/snapshot_codec.h"
#include "tests/support/heap_backend.h"
#include "tests/support/manual_clock.h"

namespace gdpcache::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::string Key(int number) {
  const std::string digits = std::to_string(number);
  return std::string(16 - digits.size(), '0') + digits;
}

/// The calls below the transport, where the tenant is an argument.
class SnapshotCallsTest : public ::testing::Test {
 protected:
  SnapshotCallsTest() {
    cache::CacheSpec spec;
    spec.name = "a";
    spec.fingerprint = "model@1";
    spec.geometry = {.layers = 2, .slots = 1, .heads = 1, .key_dim = 2, .value_dim = 3, .auxiliary_bytes = 4};
    EXPECT_TRUE(catalog_.CreateCache(spec).ok());
  }

  static cache::CatalogLimits Limits() {
    cache::CatalogLimits limits;
    limits.max_caches = 1;
    limits.max_sessions = 1;
    limits.state_memory_bytes = 1 << 20;
    limits.default_session_ttl = limits.max_session_ttl = absl::Hours(1);
    return limits;
  }

  std::unique_ptr<cache::SnapshotStore> MakeStore() {
    std::vector<cache::StoreTier> tiers;
    for (const cache::TierKind kind : {cache::TierKind::kDevice, cache::TierKind::kHost}) {
      tiers.push_back({std::make_unique<cache::MemoryTier>(backend_, kind, 1 << 20), 1 << 20, 1 << 20});
    }
    cache::SnapshotOptions options;
    options.limits.pinned_bytes = 1 << 20;
    options.limits.max_watches = 1;
    options.limits.max_pin_ttl = absl::Hours(1);
    options.limits.pending_timeout = absl::Seconds(60);
    return cache::SnapshotStore::Create(backend_, clock_, std::move(tiers), std::move(options)).value();
  }

  void Store(const std::string& tenant, int number, cache::TierKind tier = cache::TierKind::kDevice) {
    cache::SnapshotRecord record;
    record.space = SpaceOf(catalog_, "a", tenant).value();
    record.key = Key(number);
    record.position = number;
    cache::SnapshotDraft draft = store_->BeginWhole(record, tier);
    for (const cache::SnapshotPart& part : draft.parts()) {
      std::memset(part.state.data, number, part.state.size);
      std::memset(part.auxiliary.data, number, part.auxiliary.size);
    }
    EXPECT_EQ(store_->Commit(std::move(draft)).result, cache::SnapshotResult::kStored);
  }

  std::int64_t Find(const std::string& tenant, const std::vector<int>& numbers) {
    v1::LookupPrefixRequest request;
    request.set_cache("a");
    for (const int number : numbers) request.add_keys(Key(number));
    v1::LookupPrefixResponse response;
    EXPECT_TRUE(LookupPrefix(plane_, tenant, request, response).ok());
    EXPECT_EQ(response.has_snapshot(), response.index() >= 0);
    return response.index();
  }

  absl::StatusOr<std::string> Pin(const std::string& tenant, int number) {
    v1::PinSnapshotsRequest request;
    request.set_cache("a");
    request.add_keys(Key(number));
    v1::PinSnapshotsResponse response;
    if (absl::Status status = PinSnapshots(plane_, tenant, request, response); !status.ok()) return status;
    return response.pin();
  }

  absl::Status Unpin(const std::string& tenant, const std::string& pin) {
    v1::UnpinSnapshotsRequest request;
    request.set_cache("a");
    request.set_pin(pin);
    return UnpinSnapshots(plane_, tenant, request);
  }

  std::int64_t Delete(const std::string& tenant, int number) {
    v1::DeleteSnapshotsRequest request;
    request.set_cache("a");
    request.add_keys(Key(number));
    request.set_force(true);
    v1::DeleteSnapshotsResponse response;
    EXPECT_TRUE(DeleteSnapshots(plane_, tenant, request, response).ok());
    return response.deleted();
  }

  v1::ListSnapshotsResponse List(const std::string& tenant, std::int64_t page_size = 0, const std::string& token = "") {
    v1::ListSnapshotsRequest request;
    request.set_cache("a");
    request.set_page_size(page_size);
    request.set_page_token(token);
    v1::ListSnapshotsResponse response;
    const auto for_nothing = [](std::int64_t /*bytes*/) { return absl::OkStatus(); };
    EXPECT_TRUE(ListSnapshots(plane_, tenant, request, for_nothing, response).ok());
    return response;
  }

  test::HeapBackend backend_;
  test::ManualClock clock_;
  std::unique_ptr<cache::SnapshotStore> store_ = MakeStore();
  cache::Catalog catalog_{backend_, clock_, Limits()};
  std::unique_ptr<engine::Engine> engine_ = engine::Engine::Create(backend_, {}, store_.get()).value();
  const SnapshotPlane plane_{catalog_, *store_, *engine_, clock_, absl::Hours(1)};
};

TEST_F(SnapshotCallsTest, AnotherTenantsSnapshotsDoNotExistInAnyTier) {
  Store("mine", 1, cache::TierKind::kDevice);
  Store("mine", 2, cache::TierKind::kHost);
  const std::string pin = Pin("mine", 1).value();
  for (const int number : {1, 2}) {
    EXPECT_EQ(Find("mine", {number}), 0);
    EXPECT_EQ(Find("theirs", {number}), -1);
    // As a key that nobody has.
    EXPECT_EQ(Pin("theirs", number).status(), Pin("theirs", 3).status());
    EXPECT_EQ(Delete("theirs", number), 0);
  }
  EXPECT_EQ(Unpin("theirs", pin), Unpin("theirs", "no pin at all"));
  EXPECT_EQ(Unpin("theirs", pin).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(List("theirs").snapshots(), SizeIs(0));
  EXPECT_THAT(List("mine").snapshots(), SizeIs(2));
  EXPECT_TRUE(Unpin("mine", pin).ok());
}

TEST_F(SnapshotCallsTest, TenantsMayHaveTheSameKeys) {
  Store("mine", 1);
  Store("theirs", 1);
  EXPECT_EQ(Delete("mine", 1), 1);
  EXPECT_EQ(Find("mine", {1}), -1);
  EXPECT_EQ(Find("theirs", {1}), 0);
}

TEST_F(SnapshotCallsTest, TheLongestKeyThatIsThereIsFound) {
  Store("mine", 1);
  Store("mine", 3);
  EXPECT_EQ(Find("mine", {1, 2, 3, 4}), 2);
  EXPECT_EQ(Find("mine", {1, 2}), 0);
  EXPECT_EQ(Find("mine", {2, 4}), -1);
  EXPECT_EQ(Find("mine", {}), -1);
}

TEST_F(SnapshotCallsTest, ListsTellAgesAndGoOnBehindTheLastKeyOfAPage) {
  Store("mine", 1);
  clock_.Advance(absl::Seconds(5));
  Store("mine", 2);
  Store("mine", 3);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Find("mine", {1}), 0);
  clock_.Advance(absl::Seconds(1));
  const v1::ListSnapshotsResponse first = List("mine", 2);
  ASSERT_THAT(first.snapshots(), SizeIs(2));
  EXPECT_EQ(first.snapshots(0).key(), Key(1));
  EXPECT_EQ(first.snapshots(0).age_ms(), 8'000);
  EXPECT_EQ(first.snapshots(0).idle_ms(), 1'000);
  EXPECT_EQ(first.snapshots(0).bytes(), 2 * (2 * 3 * 4 + 4));
  EXPECT_THAT(first.snapshots(0).tiers(), ElementsAre(v1::SNAPSHOT_TIER_DEVICE));
  EXPECT_EQ(first.snapshots(1).age_ms(), 3'000);
  Delete("mine", 2);  // the key that the token names
  const v1::ListSnapshotsResponse second = List("mine", 2, first.next_page_token());
  ASSERT_THAT(second.snapshots(), SizeIs(1));
  EXPECT_EQ(second.snapshots(0).key(), Key(3));
  EXPECT_EQ(second.next_page_token(), "");
  EXPECT_EQ(List("mine", 2).next_page_token(), "") << "a page that just holds all is the last";
}

TEST_F(SnapshotCallsTest, ResultsAndEventsHaveTheirNamesOnTheWire) {
  using Result = cache::SnapshotResult;
  EXPECT_EQ(EncodeOutcome({Result::kPending, 1, ""}).result(), v1::SNAPSHOT_RESULT_PENDING);
  EXPECT_EQ(EncodeOutcome({Result::kStored, 1, ""}).result(), v1::SNAPSHOT_RESULT_STORED);
  EXPECT_EQ(EncodeOutcome({Result::kPresent, 7, ""}).position(), 7);
  EXPECT_EQ(EncodeOutcome({Result::kPresent, 7, ""}).result(), v1::SNAPSHOT_RESULT_PRESENT);
  EXPECT_EQ(EncodeOutcome({Result::kNoSpace, 1, "full"}).result(), v1::SNAPSHOT_RESULT_NO_SPACE);
  EXPECT_EQ(EncodeOutcome({Result::kNoSpace, 1, "full"}).message(), "full");
  using Type = cache::SnapshotEvent::Type;
  EXPECT_EQ(EncodeEvent({Type::kStored, "k", 3}).type(), v1::SnapshotEvent::TYPE_STORED);
  EXPECT_EQ(EncodeEvent({Type::kStored, "k", 3}).position(), 3);
  EXPECT_EQ(EncodeEvent({Type::kEvicted, "k", 3}).type(), v1::SnapshotEvent::TYPE_EVICTED);
  EXPECT_EQ(EncodeEvent({Type::kDeleted, "k", 3}).key(), "k");
  EXPECT_EQ(EncodeEvent({Type::kDeleted, "k", 3}).type(), v1::SnapshotEvent::TYPE_DELETED);
  EXPECT_EQ(EncodeEvent({Type::kSynced, "", 0}).type(), v1::SnapshotEvent::TYPE_SYNCED);
  EXPECT_EQ(EncodeTier(cache::TierKind::kHost), v1::SNAPSHOT_TIER_HOST);
  EXPECT_EQ(EncodeTier(cache::TierKind::kDisk), v1::SNAPSHOT_TIER_DISK);
}

}  // namespace
}  // namespace gdpcache::rpc
