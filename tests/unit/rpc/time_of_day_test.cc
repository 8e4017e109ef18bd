// Somebody sets the host's clock while calls are under way and leases run, a day forward or back. Nothing that takes
// the time from elsewhere expires or waits for it.

#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/library/token_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/rpc/memory/descriptor_socket.h"
#include "tests/support/eventually.h"
#include "tests/support/heap_backend.h"
#include "tests/support/registration_token.h"
#include "tests/support/sample_snapshot.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/wall_clock.h"
#include "tests/unit/rpc/served_world.h"

namespace gdpcache::rpc {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kDay = absl::Hours(24);
constexpr absl::Duration kLease = absl::Minutes(1);

class TimeOfDay : public ::testing::TestWithParam<absl::Duration> {
 protected:
  ~TimeOfDay() override { test::SetTimeOfDay(-GetParam()); }
};

TEST_P(TimeOfDay, IsSetForTheWholeProgramAndNotForSteadyClocks) {
  const absl::Time before = absl::Now();
  const absl::Time steady_before = cache::SteadyNow();
  test::SetTimeOfDay(GetParam());
  EXPECT_LT(absl::AbsDuration(absl::Now() - before - GetParam()), absl::Minutes(1));
  EXPECT_LT(absl::AbsDuration(cache::SteadyNow() - steady_before), absl::Minutes(1));
  EXPECT_GE(cache::SteadyNow(), steady_before);
}

TEST_P(TimeOfDay, LeavesDeadlinesAndTimingsOfCallsUnderWayAlone) {
  const testing::Problem problem = engine::SmallProblem();
  ServedWorld world({.workers = 2, .segment_bytes = std::int64_t{16} << 10});
  const std::shared_ptr<cache::Session> session = world.OpenSession(engine::GeometryOf(problem));
  const v1::PrefillRequest request = ToProto(problem, session->id());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
  const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
  ASSERT_TRUE(stream->Write(HeaderOf(request)));
  std::vector<Upload> uploads = UploadsOf(request);
  for (Upload& upload : uploads) ASSERT_TRUE(stream->Write(NextFrame(upload, upload.bytes->size() / 2)));
  ASSERT_TRUE(test::Eventually([&] { return world.backend.calls(engine::Operation::kRunRecurrence) > 0; }));
  test::SetTimeOfDay(GetParam());
  for (Upload& upload : uploads) ASSERT_TRUE(stream->Write(NextFrame(upload, upload.bytes->size())));
  stream->WritesDone();
  const Streamed streamed = ReadAll(*stream);
  EXPECT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_LT(streamed.response.timing().total_us(), absl::ToInt64Microseconds(absl::Minutes(9)));
  for (const std::int64_t spent : {streamed.response.timing().queue_us(), streamed.response.timing().stage_in_us(),
                                   streamed.response.timing().compute_us(), streamed.response.timing().stage_out_us(),
                                   streamed.response.timing().total_us()}) {
    EXPECT_GE(spent, 0);
  }
}

/// One of everything that lasts for kLease, on the server's own clock.
class Leases {
 public:
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  Leases() {
    EXPECT_TRUE(catalog_
                    .CreateCache({.name = "a",
                                  .geometry = {.layers = 2, .slots = 1, .heads = 1, .key_dim = 8, .value_dim = 8},
                                  .fingerprint = "f"})
                    .ok());
    auto session = catalog_.OpenSession("a", kLease, "client");
    EXPECT_TRUE(session.ok()) << session.status();
    session_ = (*session)->id();
    for (const char* name : {kPinned, kLeased}) {
      EXPECT_EQ(store_->Commit(store_->BeginWhole(RecordOf(name), cache::TierKind::kDevice)).result,
                cache::SnapshotResult::kStored);
    }
    EXPECT_TRUE(store_->Pin(Space(), {KeyViewOf(kPinned)}, kLease).ok());
    EXPECT_NE(store_->LookupPrefix(Space(), {KeyViewOf(kLeased)}, kLease)->pin, "");
    auto part = store_->BeginPart((*session)->key(), RecordOf(kUnfinished), 0);
    EXPECT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(store_->Commit(*std::move(part)).result, cache::SnapshotResult::kPending);
    pass_ = test::RegistrationToken(path_);
  }

  ~Leases() {
    catalog_.CloseAllSessions([] {});
  }

  /// What of it has ended by now.
  std::vector<std::string> Ended() {
    catalog_.ExpireSessions();
    store_->Expire();
    std::vector<std::string> ended;
    if (!catalog_.FindSession(session_, cache::kDefaultTenant).ok()) ended.emplace_back("session");
    for (const cache::SnapshotSummary& snapshot : store_->List(Space(), "", 10)) {
      if (!snapshot.pinned) ended.push_back(snapshot.key == KeyViewOf(kPinned) ? "pin" : "lease");
    }
    if (store_->counters().abandoned > 0) ended.emplace_back("part");
    return ended;
  }

  /// Of a token, which this uses up.
  bool TokenHasEnded() { return !descriptors_->TakePass(pass_).ok(); }

 private:
  static constexpr char kPinned[] = "pinned";
  static constexpr char kLeased[] = "leased";
  static constexpr char kUnfinished[] = "unfinished";

  static cache::SnapshotSpace Space() { return test::SmallSpace(); }
  static std::string KeyOf(const std::string& name) { return name + std::string(16, '.'); }
  static absl::string_view KeyViewOf(const std::string& name) {
    static auto& keys = *new std::map<std::string, std::string>;
    return keys[name] = KeyOf(name);
  }
  static cache::SnapshotRecord RecordOf(const std::string& name) {
    return {.space = Space(), .key = KeyOf(name), .position = 64};
  }
  static std::vector<cache::StoreTier> Tiers(kernels::Backend& backend) {
    constexpr std::int64_t kBytes = 1 << 20;
    std::vector<cache::StoreTier> tiers;
    tiers.push_back({std::make_unique<cache::MemoryTier>(backend, cache::TierKind::kDevice, kBytes), kBytes, kBytes});
    return tiers;
  }

  test::HeapBackend backend_;
  const cache::RealClock clock_;
  std::unique_ptr<cache::SnapshotStore> store_ =
      cache::SnapshotStore::Create(
          backend_, clock_, Tiers(backend_),
          {.limits = {.pinned_bytes = 1 << 20, .max_pin_ttl = absl::Hours(1), .pending_timeout = kLease}})
          .value();
  cache::Catalog catalog_{backend_,
                          clock_,
                          {.max_caches = 1,
                           .max_sessions = 1,
                           .state_memory_bytes = 1 << 20,
                           .default_session_ttl = kLease,
                           .max_session_ttl = kLease},
                          [this](cache::SessionKey session) { store_->EndSession(session); }};
  const test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/descriptors";
  std::unique_ptr<DescriptorSocket> descriptors_ = DescriptorSocket::Listen(path_, clock_).value();
  std::string session_;
  std::string pass_;
};

TEST_P(TimeOfDay, EndsNoLeaseAndProlongsNone) {
  Leases leases;
  EXPECT_THAT(leases.Ended(), IsEmpty());
  test::SetTimeOfDay(GetParam());
  EXPECT_THAT(leases.Ended(), IsEmpty());
  test::PassTime(kLease / 2);
  EXPECT_THAT(leases.Ended(), IsEmpty()) << "this renews the session";
  test::PassTime(kLease / 2);
  EXPECT_THAT(leases.Ended(), UnorderedElementsAre("pin", "lease", "part"));
  test::PassTime(kLease);
  EXPECT_THAT(leases.Ended(), Contains("session"));
}

TEST_P(TimeOfDay, EndsNoTokenAndProlongsNone) {
  Leases before;
  Leases after;
  test::SetTimeOfDay(GetParam());
  EXPECT_FALSE(before.TokenHasEnded());
  test::PassTime(DescriptorSocket::kTokenLife);
  EXPECT_TRUE(after.TokenHasEnded());
}

TEST_P(TimeOfDay, DoesNotKeepAClientFromReadingItsTokenAgain) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/token";
  std::ofstream(path) << "first";
  const auto source = client::TokenSource::FromFile(path);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Token(), "first");
  std::ofstream(path) << "second";
  test::SetTimeOfDay(GetParam());
  test::PassTime(absl::Seconds(2));
  EXPECT_EQ((*source)->Token(), "second");
}

INSTANTIATE_TEST_SUITE_P(ForwardAndBack, TimeOfDay, ::testing::Values(kDay, -kDay), [](const auto& instance) {
  return std::string(instance.param > absl::ZeroDuration() ? "Forward" : "Back");
});

}  // namespace
}  // namespace gdpcache::rpc
