#include "server/observe/free_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

namespace gdpcache::observe {
namespace {

std::int64_t ResidentBytes() {
  std::int64_t total = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * getpagesize();
}

TEST(FreeMemory, GoesBackToTheSystemThoughSomethingAboveItIsInUse) {
  constexpr std::int64_t kBytes = std::int64_t{128} << 20;
  constexpr std::size_t kPiece = 1'000;
  std::unique_ptr<char[]> last;
  std::int64_t before = 0;
  std::thread([&] {  // the heap of another thread than the main one
    std::vector<std::unique_ptr<char[]>> pieces;
    for (std::int64_t bytes = 0; bytes < kBytes; bytes += kPiece) {
      pieces.push_back(std::make_unique<char[]>(kPiece));  // touches it
    }
    last = std::move(pieces.back());
    before = ResidentBytes();
  })
      .join();
  GiveBackFreeMemory();
  EXPECT_LT(ResidentBytes(), before - kBytes / 2);
  EXPECT_EQ(last[0], '\0');
}

}  // namespace
}  // namespace gdpcache::observe
