#include "server/cache/snapshots/memory_tier.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/snapshots/snapshot_world.h"

namespace gdpcache::cache {
namespace {

using ::testing::HasSubstr;
using Operation = test::FaultInjectingBackend::Operation;

class MemoryTierTest : public ::testing::Test {
 protected:
  test::HeapBackend heap_;
  test::FaultInjectingBackend backend_{heap_};
  std::unique_ptr<kernels::Stream> stream_ = *backend_.CreateStream();
  SnapshotWorld world_{{}};  // fills and checks
};

TEST_F(MemoryTierTest, APartIsItsStateAndThenItsAuxiliaryBytes) {
  MemoryTier tier(backend_, TierKind::kDevice, 100 * kSnapshotBytes);
  const absl::StatusOr<SnapshotMemory> memory = tier.Allocate(TestSpace(), 2);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_EQ(memory->parts().size(), 2);
  for (const SnapshotPart& part : memory->parts()) {
    EXPECT_EQ(part.state.size, 256);
    EXPECT_EQ(part.auxiliary.size, 256);
    EXPECT_EQ(static_cast<std::byte*>(part.state.data) + 256, part.auxiliary.data);
  }
  EXPECT_EQ(tier.used(), kSnapshotBytes);
  EXPECT_EQ(tier.used(), MemoryTier::Footprint(TestSpace(), 2));
}

TEST_F(MemoryTierTest, ASpaceWithoutAuxiliaryBytesHasNone) {
  MemoryTier tier(backend_, TierKind::kDevice, 100 * kSnapshotBytes);
  SnapshotSpace space = TestSpace();
  space.auxiliary_bytes = 0;
  const absl::StatusOr<SnapshotMemory> memory = tier.Allocate(space, 1);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->parts()[0].auxiliary.size, 0);
  EXPECT_EQ(tier.used(), 256);
}

TEST_F(MemoryTierTest, ACopyOutlivesItsTier) {
  auto tier = std::make_unique<MemoryTier>(backend_, TierKind::kHost, 100 * kSnapshotBytes);
  absl::StatusOr<SnapshotMemory> memory = tier->Allocate(TestSpace(), 2);
  ASSERT_TRUE(memory.ok());
  world_.Fill(memory->parts(), 7);
  const std::shared_ptr<TierCopy> copy = tier->Adopt(*std::move(memory));
  tier.reset();
  EXPECT_TRUE(world_.Holds(copy->parts(), 7));
}

TEST_F(MemoryTierTest, AFailedCopyLeavesNothing) {
  MemoryTier tier(backend_, TierKind::kHost, 100 * kSnapshotBytes);
  absl::StatusOr<SnapshotMemory> source = tier.Allocate(TestSpace(), 2);
  ASSERT_TRUE(source.ok());
  backend_.FailAfter(Operation::kCopyBytes, 0, absl::UnavailableError("lost"));
  EXPECT_TRUE(absl::IsUnavailable(tier.Store({TestSpace(), Key(7), 64}, source->parts(), *stream_).status()));
  EXPECT_EQ(tier.used(), kSnapshotBytes);
  EXPECT_EQ(backend_.calls(Operation::kSynchronize), 1);  // nothing is under way in what was given back
}

TEST_F(MemoryTierTest, AFullTierNamesItself) {
  MemoryTier tier(backend_, TierKind::kHost, kSnapshotBytes);
  const absl::Status status = tier.Allocate(TestSpace(), 3).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the host tier: 3 x 512 bytes are needed; 0 of 1024 are in use"));
}

TEST_F(MemoryTierTest, MovedMemoryIsGivenBackOnce) {
  MemoryTier tier(backend_, TierKind::kHost, 100 * kSnapshotBytes);
  {
    absl::StatusOr<SnapshotMemory> first = tier.Allocate(TestSpace(), 1);
    absl::StatusOr<SnapshotMemory> second = tier.Allocate(TestSpace(), 1);
    ASSERT_TRUE(first.ok() && second.ok());
    const void* const second_state = second->parts()[0].state.data;
    first->Append(*std::move(second));
    ASSERT_EQ(first->parts().size(), 2);
    EXPECT_EQ(first->parts()[1].state.data, second_state);
    SnapshotMemory moved = *std::move(first);
    EXPECT_EQ(tier.used(), kSnapshotBytes);
    moved = SnapshotMemory();
    EXPECT_EQ(tier.used(), 0);
  }
  EXPECT_EQ(tier.used(), 0);
}

}  // namespace
}  // namespace gdpcache::cache
