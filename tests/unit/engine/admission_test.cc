#include "server/engine/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/cache/errors.h"

namespace gdpcache::engine {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 2;
constexpr Admission::Owner kSomebody = 1;

/// Admission with a clock of its own.
class Scene {
 public:
  explicit Scene(const AdmissionLimits& limits) : admission_(limits, kWorkers) {}

  void Pass(absl::Duration time) { now_ += time; }
  absl::Status Check(Admission::Owner owner) { return admission_.Check(owner, now_); }
  absl::Status Begin(Admission::Owner owner) { return admission_.Begin(owner, now_); }
  /// A call with its step handed to the workers, whatever admission says.
  void Submit(Admission::Owner owner, double work = 1) { admission_.StepSubmitted(owner, work, now_); }
  void Done(Admission::Owner owner, double work = 1) { admission_.StepDone(owner, work, now_); }
  Admission& admission() { return admission_; }

  /// `count` units of work wait, each of a session of its own from `first` on, and lately `rate` of them were done a
  /// second.
  void Busy(int count, double rate, Admission::Owner first = 100) {
    for (int i = 0; i < count; ++i) Submit(first + static_cast<Admission::Owner>(i));
    for (int i = 0; i < 200; ++i) {
      Submit(first);
      Pass(absl::Seconds(1 / rate));
      Done(first);
    }
  }

 private:
  Admission admission_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST(Admission, CountsCallsAndNamesBothValues) {
  Scene scene({.max_calls = 4, .max_wait = absl::Seconds(1)});
  EXPECT_TRUE(scene.Begin(1).ok());
  EXPECT_TRUE(scene.Begin(2).ok());
  EXPECT_TRUE(scene.Begin(3).ok());
  EXPECT_TRUE(scene.Begin(4).ok());
  EXPECT_EQ(scene.admission().calls(), 4);
  const absl::Status refused = scene.Begin(5);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(), "the server has 4 calls under way; it may have at most 4");
  EXPECT_TRUE(cache::RetryAfterOf(refused).has_value());
  scene.admission().End(2);
  EXPECT_TRUE(scene.Begin(5).ok());
  scene.admission().BeginInAnyCase(6);
  EXPECT_EQ(scene.admission().calls(), 5);
}

TEST(Admission, OneSessionMayHaveHalf) {
  Scene scene({.max_calls = 6, .max_wait = absl::Seconds(1)});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(scene.Begin(kSomebody).ok());
  const absl::Status refused = scene.Begin(kSomebody);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(), "the session has 3 calls under way; one session may have at most 3");
  EXPECT_TRUE(scene.Begin(2).ok()) << "the others have the rest";
}

TEST(Admission, WithoutAMeasuredSpeedNothingIsKnownOfTheWait) {
  Scene scene({.max_calls = 1'000, .max_wait = absl::Milliseconds(1)});
  for (Admission::Owner owner = 0; owner < 100; ++owner) {
    EXPECT_TRUE(scene.Begin(owner).ok());
    scene.Submit(owner);
  }
  EXPECT_EQ(scene.admission().expected_wait(), absl::ZeroDuration());
}

TEST(Admission, AFirstStepThatLastsIsWaitedForAsLongAsCallsMayWait) {
  Scene scene({.max_calls = 1'000, .max_wait = absl::Milliseconds(500)});
  for (Admission::Owner owner = 100; owner < 120; ++owner) scene.Submit(owner);
  scene.Pass(absl::Milliseconds(490));
  EXPECT_TRUE(scene.Check(kSomebody).ok());
  scene.Pass(absl::Milliseconds(20));
  const absl::Status refused = scene.Check(kSomebody);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("would have to wait about 510ms"));
  scene.Pass(absl::Hours(1));
  EXPECT_TRUE(absl::IsResourceExhausted(scene.Check(kSomebody))) << "and workers that never did anything are noticed";
}

TEST(Admission, RefusesWhatWouldWaitTooLongAndTellsWhenToComeAgain) {
  Scene scene({.max_calls = 1'000, .max_wait = absl::Milliseconds(500)});
  scene.Busy(40, /*rate=*/100);  // 400 ms of work
  EXPECT_TRUE(scene.Check(kSomebody).ok());
  for (Admission::Owner owner = 200; owner < 220; ++owner) scene.Submit(owner);  // 600 ms
  const absl::Status refused = scene.Check(kSomebody);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("would have to wait about 6"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("calls may have to wait at most 500ms"));
  const std::optional<absl::Duration> retry = cache::RetryAfterOf(refused);
  ASSERT_TRUE(retry.has_value());
  EXPECT_GE(*retry, absl::Milliseconds(300)) << "until half of the bound is left";
  EXPECT_LE(*retry, absl::Milliseconds(400));
}

TEST(Admission, SessionsTakeTurnsSoOnlyTheGreedyOneIsRefused) {
  Scene scene({.max_calls = 10'000, .max_wait = absl::Milliseconds(500)});
  constexpr Admission::Owner kGreedy = 7;
  for (int i = 0; i < 300; ++i) scene.Submit(kGreedy);
  scene.Busy(4, /*rate=*/100);
  EXPECT_TRUE(absl::IsResourceExhausted(scene.Check(kGreedy)));
  EXPECT_TRUE(scene.Check(kSomebody).ok());
  EXPECT_LT(scene.admission().expected_wait(), absl::Milliseconds(100));
}

TEST(Admission, AFewLargeCallsMayWaitWhateverTheEstimate) {
  Scene scene({.max_calls = 1'000, .max_wait = absl::Milliseconds(500)});
  scene.Busy(kWorkers + 1, /*rate=*/1);
  EXPECT_TRUE(scene.Check(kSomebody).ok());
}

TEST(Admission, TheSpeedIsThatOfTheLastSeconds) {
  Scene scene({.max_calls = 1'000, .max_wait = absl::Milliseconds(500)});
  scene.Busy(20, /*rate=*/10);
  EXPECT_TRUE(absl::IsResourceExhausted(scene.Check(kSomebody)));
  for (int i = 0; i < 5'000; ++i) {
    scene.Submit(100);
    scene.Pass(absl::Milliseconds(1));
    scene.Done(100);
  }
  EXPECT_TRUE(scene.Check(kSomebody).ok());
}

TEST(Admission, IdleTimeIsNoMeasureOfTheSpeed) {
  Scene scene({.max_calls = 1'000, .max_wait = absl::Milliseconds(500)});
  scene.Busy(20, /*rate=*/1'000);
  for (Admission::Owner owner = 100; owner < 120; ++owner) scene.Done(owner);
  scene.Pass(absl::Hours(1));
  for (Admission::Owner owner = 100; owner < 120; ++owner) scene.Submit(owner);
  EXPECT_TRUE(scene.Check(kSomebody).ok());
}

TEST(Admission, WorkersThatHangAreNoticedWithoutAnythingBeingDone) {
  Scene scene({.max_calls = 1'000, .max_wait = absl::Milliseconds(500)});
  scene.Busy(20, /*rate=*/1'000);
  EXPECT_TRUE(scene.Check(kSomebody).ok());
  for (int i = 0; i < 600; ++i) {
    scene.Pass(absl::Milliseconds(100));
    scene.Check(kSomebody).IgnoreError();
  }
  const absl::Status refused = scene.Check(kSomebody);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_LE(*cache::RetryAfterOf(refused), absl::Seconds(30)) << "nobody is sent away for good";
}

}  // namespace
}  // namespace gdpcache::engine
