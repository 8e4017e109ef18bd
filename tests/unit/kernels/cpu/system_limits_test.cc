#include "kernels/cpu/system_limits.h"

#include <unistd.h>

#include <thread>

#include "gtest/gtest.h"

namespace gdpcache::kernels::cpu {
namespace {

TEST(SystemLimitsTest, MemoryIsPositiveAndNoMoreThanTheMachineHas) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LE(AvailableMemoryBytes(), std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE));
}

TEST(SystemLimitsTest, ProcessorsArePositiveAndNoMoreThanTheMachineHas) {
  EXPECT_GE(AvailableProcessors(), 1);
  EXPECT_LE(AvailableProcessors(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace gdpcache::kernels::cpu
