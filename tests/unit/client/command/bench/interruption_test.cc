#include "client/command/bench/interruption.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace gdpcache::bench {
namespace {

TEST(InterruptionTest, NotesTheFirstSignalOfEachKind) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Interruption interruption;
    EXPECT_TRUE(CheckInterruption().ok());
    raise(signal);
    EXPECT_EQ(CheckInterruption().code(), absl::StatusCode::kCancelled);
    SleepUnlessInterrupted(absl::InfiniteDuration());
  }
}

TEST(InterruptionDeathTest, TheSecondSignalEndsTheProcess) {
  const Interruption interruption;
  EXPECT_EXIT(
      {
        raise(SIGINT);
        raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(InterruptionTest, LeavesTheHandlersAsTheyWere) {
  struct sigaction before = {};
  sigaction(SIGTERM, nullptr, &before);
  { const Interruption interruption; }
  struct sigaction after = {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

}  // namespace
}  // namespace gdpcache::bench
