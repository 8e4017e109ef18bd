#include "server/cache/snapshots/arena.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/heap_backend.h"

namespace gdpcache::cache {
namespace {

using test::FaultInjectingBackend;
using ::testing::HasSubstr;

constexpr std::int64_t kUnit = Arena::kAlignment;

class ArenaTest : public ::testing::Test {
 protected:
  static std::vector<Arena::Extent> Take(Arena& arena, std::int64_t size, std::int64_t count = 1) {
    absl::StatusOr<std::vector<Arena::Extent>> extents = arena.Allocate(size, count);
    EXPECT_TRUE(extents.ok()) << extents.status();
    return extents.ok() ? *extents : std::vector<Arena::Extent>();
  }

  test::HeapBackend heap_;
  FaultInjectingBackend backend_{heap_};
};

TEST_F(ArenaTest, TakesNoMemoryUntilSomeIsNeeded) {
  Arena arena(backend_, kernels::MemoryKind::kHost, 1'000 * kUnit, 10 * kUnit);
  EXPECT_EQ(arena.held(), 0);
  EXPECT_EQ(heap_.allocated_bytes(), 0);
  const std::vector<Arena::Extent> extents = Take(arena, 1);
  EXPECT_EQ(arena.held(), 10 * kUnit);
  EXPECT_EQ(arena.used(), kUnit);
  arena.Free(extents);
  EXPECT_EQ(arena.used(), 0);
}

TEST_F(ArenaTest, AsksTheBackendOncePerSlab) {
  Arena arena(backend_, kernels::MemoryKind::kDevice, 100 * kUnit, 10 * kUnit);
  std::vector<Arena::Extent> extents;
  for (int n = 0; n < 40; ++n) extents.push_back(Take(arena, kUnit).front());
  for (int round = 0; round < 10; ++round) {
    arena.Free(extents);
    extents = Take(arena, kUnit, 40);
  }
  EXPECT_EQ(backend_.calls(FaultInjectingBackend::Operation::kAllocate), 4);
  arena.Free(extents);
}

TEST_F(ArenaTest, TheWholeBudgetCanBeUsedAndNoMore) {
  Arena arena(backend_, kernels::MemoryKind::kHost, 25 * kUnit + 7, 10 * kUnit);
  const std::vector<Arena::Extent> extents = Take(arena, kUnit, 25);
  EXPECT_EQ(arena.used(), 25 * kUnit);
  const absl::Status status = arena.Allocate(1, 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 x 1 bytes are needed; 6400 of 6400 are in use"));
  arena.Free(extents);
}

TEST_F(ArenaTest, AllOrNothing) {
  Arena arena(backend_, kernels::MemoryKind::kHost, 30 * kUnit, 10 * kUnit);
  const std::vector<Arena::Extent> extents = Take(arena, 4 * kUnit, 6);  // two in each slab
  EXPECT_TRUE(absl::IsResourceExhausted(arena.Allocate(2 * kUnit, 4).status()));
  EXPECT_EQ(arena.used(), 24 * kUnit);
  const std::vector<Arena::Extent> more = Take(arena, 2 * kUnit, 3);
  EXPECT_EQ(arena.used(), 30 * kUnit);
  arena.Free(extents);
  arena.Free(more);
}

TEST_F(ArenaTest, AnExtentLargerThanASlabGetsALargerSlab) {
  Arena arena(backend_, kernels::MemoryKind::kHost, 100 * kUnit, 10 * kUnit);
  const std::vector<Arena::Extent> extents = Take(arena, 35 * kUnit);
  EXPECT_EQ(arena.held(), 35 * kUnit);
  arena.Free(extents);
}

TEST_F(ArenaTest, FreedNeighboursBecomeOnePiece) {
  Arena arena(backend_, kernels::MemoryKind::kHost, 10 * kUnit, 10 * kUnit);
  const std::vector<Arena::Extent> extents = Take(arena, kUnit, 10);
  for (const std::size_t n : {1, 3, 2, 8, 9, 0, 5, 7, 6, 4}) arena.Free({&extents[n], 1});
  const std::vector<Arena::Extent> whole = Take(arena, 10 * kUnit);
  arena.Free(whole);
}

TEST_F(ArenaTest, EmptySlabsAreGivenBackWhenTheirMemoryIsNeededInAnotherShape) {
  Arena arena(backend_, kernels::MemoryKind::kHost, 30 * kUnit, 10 * kUnit);
  std::vector<Arena::Extent> small = Take(arena, kUnit, 30);
  EXPECT_TRUE(absl::IsResourceExhausted(arena.Allocate(20 * kUnit, 1).status()));
  const Arena::Slab* const kept = small.front().slab;
  const auto others =
      std::partition(small.begin(), small.end(), [&](const auto& extent) { return extent.slab == kept; });
  arena.Free({&*others, static_cast<std::size_t>(small.end() - others)});
  small.erase(others, small.end());
  EXPECT_EQ(arena.held(), 30 * kUnit);
  const std::vector<Arena::Extent> large = Take(arena, 20 * kUnit);
  EXPECT_EQ(arena.held(), 30 * kUnit);
  EXPECT_LE(heap_.allocated_bytes(), 30 * kUnit + 2 * kUnit);  // and what it takes to align two slabs
  arena.Free(large);
  arena.Free(small);
}

TEST_F(ArenaTest, ABackendWithoutMemoryTakesNothing) {
  Arena arena(backend_, kernels::MemoryKind::kDevice, 100 * kUnit, 10 * kUnit);
  backend_.FailAfter(FaultInjectingBackend::Operation::kAllocate, 1, absl::ResourceExhaustedError("out of memory"));
  const absl::Status status = arena.Allocate(kUnit, 15).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory"));
  EXPECT_EQ(arena.used(), 0);
  EXPECT_EQ(arena.held(), 10 * kUnit);
  arena.Free(Take(arena, kUnit, 10));
  // It is asked again, but not each time.
  for (int n = 0; n < Arena::kPatience; ++n) EXPECT_FALSE(arena.Allocate(kUnit, 15).ok());
  EXPECT_EQ(backend_.calls(FaultInjectingBackend::Operation::kAllocate), 2);
  arena.Free(Take(arena, kUnit, 100));
}

TEST_F(ArenaTest, AbsurdSizesAreRefused) {
  Arena arena(backend_, kernels::MemoryKind::kHost, 100 * kUnit);
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(absl::IsResourceExhausted(arena.Allocate(huge, 1).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(arena.Allocate(1, huge).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(arena.Allocate(huge, huge).status()));
}

TEST_F(ArenaTest, ExtentsAreAlignedAndNeverOverlapWhateverTheOrder) {
  constexpr std::int64_t kBudget = 400 * kUnit;
  Arena arena(backend_, kernels::MemoryKind::kHost, kBudget, 64 * kUnit);
  std::mt19937 random(7);
  std::map<std::byte*, std::int64_t> taken;  // the model: what is out, by address
  std::vector<Arena::Extent> extents;
  std::int64_t used = 0;
  int refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (extents.empty() || random() % 5 < 3) {
      const auto size = static_cast<std::int64_t>(1 + random() % (40 * kUnit));
      const auto count = static_cast<std::int64_t>(1 + random() % 3);
      absl::StatusOr<std::vector<Arena::Extent>> more = arena.Allocate(size, count);
      if (!more.ok()) {
        ++refused;
      } else {
        ASSERT_EQ(static_cast<std::int64_t>(more->size()), count);
        for (const Arena::Extent& extent : *more) {
          ASSERT_EQ(reinterpret_cast<std::uintptr_t>(extent.data) % kUnit, 0);
          ASSERT_GE(extent.size, size);
          ASSERT_LT(extent.size, size + kUnit);
          const auto [place, inserted] = taken.emplace(extent.data, extent.size);
          ASSERT_TRUE(inserted);
          const bool first = place == taken.begin();
          ASSERT_TRUE(first || std::prev(place)->first + std::prev(place)->second <= place->first);
          const bool last = std::next(place) == taken.end();
          ASSERT_TRUE(last || place->first + place->second <= std::next(place)->first);
          used += extent.size;
          extents.push_back(extent);
        }
      }
    } else {
      std::swap(extents[random() % extents.size()], extents.back());
      arena.Free({&extents.back(), 1});
      used -= extents.back().size;
      taken.erase(extents.back().data);
      extents.pop_back();
    }
    ASSERT_EQ(arena.used(), used);
    ASSERT_LE(arena.held(), kBudget);
    ASSERT_LE(arena.used(), arena.held());
  }
  EXPECT_GT(refused, 100);  // it has been full many times
  arena.Free(extents);
  EXPECT_EQ(arena.used(), 0);
  arena.Free(Take(arena, kBudget));  // in one piece again
}

}  // namespace
}  // namespace gdpcache::cache
