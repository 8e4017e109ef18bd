#include "server/observe/heap.h"

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

TEST(Heap, WhatIsAllocatedIsInUseWhatIsFreedIsFreeAndLargeBlocksAreMapped) {
  constexpr std::int64_t kSmall = std::int64_t{16} << 20;
  constexpr std::int64_t kLarge = std::int64_t{64} << 20;  // more than malloc ever takes from what it has free
  constexpr std::int64_t kSlack = std::int64_t{1} << 20;
  constexpr std::size_t kPiece = 4'000;  // more than what threads keep for themselves
  const HeapBytes before = CountHeapBytes();
  std::vector<std::unique_ptr<char[]>> pieces(kSmall / kPiece);
  for (std::unique_ptr<char[]>& piece : pieces) piece = std::make_unique<char[]>(kPiece);
  auto large = std::make_unique<char[]>(kLarge);
  const HeapBytes full = CountHeapBytes();
  EXPECT_NEAR(static_cast<double>(full.in_use - before.in_use), kSmall, kSlack);
  EXPECT_NEAR(static_cast<double>(full.mapped - before.mapped), kLarge, kSlack);
  for (std::size_t i = 0; i < pieces.size(); i += 2) pieces[i].reset();  // in between, where it cannot be given back
  large.reset();
  const HeapBytes half = CountHeapBytes();
  EXPECT_NEAR(static_cast<double>(full.in_use - half.in_use), kSmall / 2.0, kSlack);
  EXPECT_NEAR(static_cast<double>(half.free - full.free), kSmall / 2.0, kSlack);
  EXPECT_EQ(half.mapped, before.mapped);
}

TEST(FreeMemory, GoesBackToTheSystemThoughSomethingAboveItIsInUse) {
  constexpr std::int64_t kBytes = std::int64_t{128} << 20;
  constexpr std::size_t kPiece = 1'000;
  std::vector<std::unique_ptr<char[]>> last;
  for (int burst = 0; burst < 2; ++burst) {
    std::int64_t before = 0;
    std::thread([&] {  // the heap of another thread than the main one
      std::vector<std::unique_ptr<char[]>> pieces;
      for (std::int64_t bytes = 0; bytes < kBytes; bytes += kPiece) {
        pieces.push_back(std::make_unique<char[]>(kPiece));  // touches it
      }
      last.push_back(std::move(pieces.back()));
      before = ResidentBytes();
    })
        .join();
    EXPECT_TRUE(GiveBackFreeMemory());
    EXPECT_LT(ResidentBytes(), before - kBytes / 2);
    EXPECT_FALSE(GiveBackFreeMemory()) << "it is free still, but gone";
  }
  for (const std::unique_ptr<char[]>& piece : last) EXPECT_EQ(piece[0], '\0');
}

}  // namespace
}  // namespace gdpcache::observe
