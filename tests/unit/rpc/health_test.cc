#include "server/rpc/health/health.h"

#include <grpcpp/grpcpp.h>
#include <prometheus/registry.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/rpc/health/health_service.h"
#include "server/rpc/metrics/refusal_metrics.h"
#include "tests/support/eventually.h"
#include "tests/support/half_sent_calls.h"
#include "tests/support/manual_clock.h"
#include "tests/support/raw_call.h"

namespace gdpcache::rpc {
namespace {

using test::Eventually;
using test::HalfSentCalls;

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";

/// Served by itself, with a clock that stands still.
class HealthTest : public ::testing::Test {
 protected:
  HealthTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~HealthTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  bool IsServing() const {
    return test::CheckHealth(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()), "") == 1;
  }

  /// Heeds what comes until `condition`.
  static bool Until(HalfSentCalls& calls, const std::function<bool()>& condition) {
    return Eventually([&] {
      calls.Send(absl::Milliseconds(1));
      return condition();
    });
  }

  test::ManualClock clock_;
  prometheus::Registry registry_;
  RefusalMetrics refusals_{registry_};
  Health health_{refusals_, clock_};
  HealthService service_{health_};
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(HealthTest, AnswersABurstOfChecks) {
  constexpr std::size_t kBurst = Health::kMaxMomentary - 1;
  HalfSentCalls calls(address_);
  for (std::size_t n = 0; n < kBurst; ++n) calls.BeginWhole(kCheck);
  EXPECT_TRUE(IsServing()) << "while their messages are on their way";
  EXPECT_TRUE(Until(calls, [&] { return calls.answers() == kBurst; })) << calls.answers();
}

TEST_F(HealthTest, OfCallsWithoutTheirWholeMessageAFewLastLongerThanAMoment) {
  HalfSentCalls calls(address_);
  for (std::size_t n = 0; n < Health::kMaxUnfinished; ++n) {
    calls.Begin(kCheck, 1'000, 100);
    calls.Begin(kWatch, 1'000, 100);
  }
  EXPECT_TRUE(Until(calls, [&] {
    clock_.Advance(Health::kMoment);
    return calls.open() <= Health::kMaxUnfinished;
  })) << calls.open();
  EXPECT_EQ(calls.open(), Health::kMaxUnfinished);
  EXPECT_TRUE(IsServing());
}

TEST_F(HealthTest, OfCallsWhoseAnswerIsNotTakenSomeLastLongerThanAMoment) {
  HalfSentCalls calls(address_, HalfSentCalls::Answers::kRefused);
  for (std::size_t n = 0; n < 2 * Health::kMaxUnread; ++n) calls.BeginWhole(kCheck);
  EXPECT_TRUE(Until(calls, [&] {
    clock_.Advance(Health::kMoment);
    return calls.open() <= Health::kMaxUnread;
  })) << calls.open();
  EXPECT_EQ(calls.open(), Health::kMaxUnread);
  EXPECT_TRUE(IsServing());
}

TEST_F(HealthTest, ThereAreNotAnyNumberOfYoungCalls) {
  HalfSentCalls calls(address_);
  for (std::size_t n = 0; n < 2 * Health::kMaxMomentary; ++n) calls.Begin(kCheck, 1'000, 100);
  EXPECT_TRUE(Until(calls, [&] { return calls.open() <= Health::kMaxMomentary; })) << calls.open();
  EXPECT_EQ(calls.open(), Health::kMaxMomentary);
  EXPECT_TRUE(IsServing());
}

TEST_F(HealthTest, WatchersOfOneHostDoNotKeepAnothersOut) {
  HalfSentCalls many(address_);
  for (std::size_t n = 1; n <= Health::kMaxWatches; ++n) {
    many.BeginWhole(kWatch);
    if (n % 128 > 0) continue;  // more at a time would lack their message
    ASSERT_TRUE(Until(many, [&] { return many.answers() == n; })) << many.answers();
  }
  EXPECT_TRUE(IsServing());
  many.BeginWhole(kWatch);
  EXPECT_TRUE(Until(many, [&] { return many.open() == Health::kMaxWatches; })) << "it gets no more itself";
  EXPECT_EQ(many.answers(), Health::kMaxWatches);

  HalfSentCalls few(address_, HalfSentCalls::Answers::kTaken, "127.0.0.2");
  for (int n = 0; n < 3; ++n) few.BeginWhole(kWatch);
  EXPECT_TRUE(Until(few, [&] { return few.answers() == 3; })) << few.answers();
  EXPECT_EQ(few.open(), 3u);
  EXPECT_TRUE(Until(many, [&] { return many.open() == Health::kMaxWatches - 3; })) << many.open();
  health_.SetNotServing();
  EXPECT_TRUE(Until(few, [&] { return few.answers() == 6; })) << few.answers();
}

}  // namespace
}  // namespace gdpcache::rpc
