#include "kernels/cpu/system_limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gdpcache::kernels::cpu {
namespace {

TEST(SystemLimitsTest, MemoryIsPositiveAndNoMoreThanTheMachineHas) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LE(AvailableMemoryBytes(), std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE));
}

TEST(SystemLimitsTest, MemoryInUseGrowsWithWhatThisProcessTouches) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  const HostMemory before = ReadHostMemory();
  EXPECT_GT(before.used_bytes, 0);
  EXPECT_LE(before.used_bytes, before.total_bytes);
  EXPECT_EQ(before.total_bytes, AvailableMemoryBytes());
  if (before.total_bytes - before.used_bytes < 4 * kBytes) GTEST_SKIP() << "there is hardly any memory left";
  std::int64_t most = 0;
  // Others come and go: once in a while they leave no more than this one takes.
  for (int n = 0; n < 20 && most < kBytes / 2; ++n) {
    const std::int64_t used = ReadHostMemory().used_bytes;
    const std::vector<char> touched(static_cast<std::size_t>(kBytes), 1);
    most = std::max(most, ReadHostMemory().used_bytes - used);
    ASSERT_EQ(touched.back(), 1);
  }
  EXPECT_GE(most, kBytes / 2);
}

TEST(SystemLimitsTest, ProcessorsArePositiveAndNoMoreThanTheMachineHas) {
  EXPECT_GE(AvailableProcessors(), 1);
  EXPECT_LE(AvailableProcessors(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace gdpcache::kernels::cpu
