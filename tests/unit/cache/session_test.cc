#include "server/cache/session.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/heap_backend.h"

namespace gdpcache::cache {
namespace {

class SessionTest : public ::testing::Test {
 protected:
  std::shared_ptr<Session> MakeSession() {
    CacheSpec spec;
    spec.name = "cache";
    spec.geometry.layers = spec.geometry.slots = spec.geometry.heads = 1;
    spec.geometry.key_dim = spec.geometry.value_dim = 1;
    return std::make_shared<Session>("id", 1, Cache::Create(backend_, spec).value(), absl::Seconds(10), "test", start_);
  }

  test::HeapBackend backend_;
  const absl::Time start_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(SessionTest, AnIdleSessionIsDrainedBeforeEndReturns) {
  const std::shared_ptr<Session> session = MakeSession();
  int drained = 0;
  EXPECT_TRUE(session->End([&drained] { ++drained; }));
  EXPECT_EQ(drained, 1);
  EXPECT_FALSE(session->End([&drained] { ++drained; }));
  EXPECT_EQ(drained, 1);
  EXPECT_EQ(session->BeginCall([] {}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionTest, EndCancelsRunningCallsAndWaitsForThem) {
  const std::shared_ptr<Session> session = MakeSession();
  int cancelled = 0;
  std::optional<Session::Call> first = session->BeginCall([&cancelled] { ++cancelled; }).value();
  std::optional<Session::Call> second = session->BeginCall([&cancelled] { ++cancelled; }).value();
  std::optional<Session::Call> ended = session->BeginCall([&cancelled] { ++cancelled; }).value();
  ended->End();
  ended->End();
  bool drained = false;
  EXPECT_TRUE(session->End([&drained] { drained = true; }));
  EXPECT_EQ(cancelled, 2);
  EXPECT_FALSE(drained);
  first.reset();
  EXPECT_FALSE(drained);
  second.reset();
  EXPECT_TRUE(drained);
}

TEST_F(SessionTest, ACancelMayEndItsCall) {
  const std::shared_ptr<Session> session = MakeSession();
  std::optional<Session::Call> call;
  call = session->BeginCall([&call] { call.reset(); }).value();
  bool drained = false;
  EXPECT_TRUE(session->End([&drained] { drained = true; }));
  EXPECT_TRUE(drained);
}

TEST_F(SessionTest, DrainLetsRunningCallsEndByThemselvesUntilTheyAreCancelled) {
  const std::shared_ptr<Session> session = MakeSession();
  int cancelled = 0;
  Session::Call call = session->BeginCall([&cancelled] { ++cancelled; }).value();
  session->CancelCalls();
  EXPECT_EQ(cancelled, 0) << "it has not ended";
  bool drained = false;
  EXPECT_TRUE(session->Drain([&drained] { drained = true; }));
  EXPECT_FALSE(session->BeginCall([] {}).ok());
  EXPECT_EQ(cancelled, 0);
  session->CancelCalls();
  session->CancelCalls();
  EXPECT_EQ(cancelled, 1);
  EXPECT_FALSE(drained);
  call.End();
  EXPECT_TRUE(drained);
}

TEST_F(SessionTest, MovingACallMovesItsRegistration) {
  const std::shared_ptr<Session> session = MakeSession();
  Session::Call call = session->BeginCall([] {}).value();
  Session::Call moved = std::move(call);
  Session::Call other = session->BeginCall([] {}).value();
  moved = std::move(other);  // ends what it held
  bool drained = false;
  EXPECT_TRUE(session->End([&drained] { drained = true; }));
  EXPECT_FALSE(drained);
  moved = Session::Call();
  EXPECT_TRUE(drained);
}

TEST_F(SessionTest, RenewOnlyProlongsAndOnlyWhileItLives) {
  const std::shared_ptr<Session> session = MakeSession();
  session->Renew(start_ + absl::Seconds(5));
  EXPECT_EQ(session->expires_at(), start_ + absl::Seconds(15));
  session->Renew(start_);
  EXPECT_EQ(session->expires_at(), start_ + absl::Seconds(15));
  session->End([] {});
  session->Renew(start_ + absl::Seconds(50));
  EXPECT_EQ(session->expires_at(), start_ + absl::Seconds(15));
}

TEST_F(SessionTest, CallsThatEndWhileTheSessionDoesDrainItOnce) {
  for (int round = 0; round < 200; ++round) {
    const std::shared_ptr<Session> session = MakeSession();
    std::atomic<int> drained = 0;
    std::atomic<int> ends = 0;
    std::vector<std::thread> threads;
    for (int n = 0; n < 3; ++n) {
      threads.emplace_back([&session] {
        while (true) {
          absl::StatusOr<Session::Call> call = session->BeginCall([] {});
          if (!call.ok()) return;
        }
      });
    }
    for (int n = 0; n < 2; ++n) {
      threads.emplace_back([&session, &drained, &ends] { ends += session->End([&drained] { ++drained; }) ? 1 : 0; });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ends, 1);
    EXPECT_EQ(drained, 1);
  }
}

}  // namespace
}  // namespace gdpcache::cache
