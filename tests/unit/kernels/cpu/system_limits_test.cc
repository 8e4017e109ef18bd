#include "kernels/cpu/system_limits.h"

#include <unistd.h>

#include <cstddef>
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

TEST(SystemLimitsTest, MemoryInUseIsAtLeastWhatThisProcessHolds) {
  const std::vector<char> touched(std::size_t{256} << 20, 1);
  const HostMemory memory = ReadHostMemory();
  EXPECT_GE(memory.used_bytes, static_cast<std::int64_t>(touched.size()));
  EXPECT_LE(memory.used_bytes, memory.total_bytes);
  EXPECT_EQ(memory.total_bytes, AvailableMemoryBytes());
  EXPECT_EQ(touched.back(), 1);
}

TEST(SystemLimitsTest, ProcessorsArePositiveAndNoMoreThanTheMachineHas) {
  EXPECT_GE(AvailableProcessors(), 1);
  EXPECT_LE(AvailableProcessors(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace gdpcache::kernels::cpu
