// How sequences share tensor maps. Nothing is encoded and no address followed, so no device is needed.

#include "kernels/cuda/hopper_maps.h"

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace gdpcache::kernels::cuda {
namespace {

constexpr std::int64_t kHeads = 2;
constexpr std::int32_t kKeys = 64;
constexpr std::int32_t kValues = 32;
constexpr std::int64_t kStateBytes = kHeads * kKeys * kValues * 4;

LaunchShape Shape() { return {.heads = kHeads, .key_dim = kKeys, .value_dim = kValues}; }

alignas(256) std::byte memory[std::size_t{1} << 20];

StateReference StateAt(std::int64_t byte) { return {memory + byte, std::int64_t{kKeys} * kValues, DataType::kFloat32}; }

/// A sequence whose tensors start at `row` of packed ones, with slot `slot` of a pool.
SequenceDescriptor Packed(std::int64_t row, std::int64_t length, std::int64_t slot) {
  SequenceDescriptor sequence;
  sequence.length = length;
  sequence.k = memory + row * kHeads * kKeys * 2;
  sequence.w = memory + 4096 + row * kHeads * kKeys * 2;
  sequence.u = memory + 8192 + row * kHeads * kValues * 2;
  sequence.initial_state = sequence.slot = StateAt(slot * kStateBytes);
  return sequence;
}

HopperMaps Plan(std::vector<SequenceDescriptor>& sequences) {
  return HopperMaps(Shape(), {.value_tile = 32, .value_tiles = 1, .cluster = 1}, absl::MakeSpan(sequences));
}

TEST(HopperMapsTest, SequencesBehindEachOtherShareTheirMapsWhateverTheirOrder) {
  std::vector<SequenceDescriptor> sequences = {Packed(100, 300, 5), Packed(0, 100, 3), Packed(400, 20, 9)};
  const HopperMaps maps = Plan(sequences);
  EXPECT_EQ(maps.count(), kStateMaps + 3U);
  EXPECT_EQ(sequences[0].map_index, kStateMaps);
  EXPECT_EQ(sequences[1].map_index, kStateMaps);
  EXPECT_EQ(sequences[2].map_index, kStateMaps);
  EXPECT_EQ(sequences[0].first_row, 100);
  EXPECT_EQ(sequences[1].first_row, 0);
  EXPECT_EQ(sequences[2].first_row, 400);
}

TEST(HopperMapsTest, AGapStartsNewMaps) {
  std::vector<SequenceDescriptor> sequences = {Packed(0, 100, 0), Packed(101, 100, 1)};
  const HopperMaps maps = Plan(sequences);
  EXPECT_EQ(maps.count(), kStateMaps + 6U);
  EXPECT_EQ(sequences[1].map_index, kStateMaps + 3);
  EXPECT_EQ(sequences[1].first_row, 0);
}

TEST(HopperMapsTest, AFewRowsNeedNoMapNorDoOperandsThatCannotHaveOne) {
  std::vector<SequenceDescriptor> sequences = {Packed(0, kHopperUnmapped, 0), Packed(500, 100, 1)};
  sequences[1].w = static_cast<const std::byte*>(sequences[1].w) + 2;
  const HopperMaps maps = Plan(sequences);
  EXPECT_EQ(maps.count(), std::size_t{kStateMaps});
  EXPECT_EQ(sequences[0].map_index, -1);
  EXPECT_EQ(sequences[1].map_index, -1);
}

TEST(HopperMapsTest, StatesCountInTheirCommonDistance) {
  std::vector<SequenceDescriptor> sequences = {Packed(0, 1, 7), Packed(1, 1, 3), Packed(2, 1, 5)};
  Plan(sequences);
  EXPECT_EQ(sequences[0].slot_index, 2);
  EXPECT_EQ(sequences[1].slot_index, 0);
  EXPECT_EQ(sequences[2].slot_index, 1);
  EXPECT_EQ(sequences[0].initial_state_index, 2);
}

TEST(HopperMapsTest, StatesOfAnotherKindGoWithout) {
  std::vector<SequenceDescriptor> sequences = {Packed(0, 1, 0), Packed(1, 1, 1), Packed(2, 1, 2), Packed(3, 1, 3)};
  sequences[1].slot.dtype = DataType::kBFloat16;
  sequences[2].slot.head_stride += 4;
  sequences[3].slot = {};
  Plan(sequences);
  EXPECT_EQ(sequences[0].slot_index, 0);
  for (const std::size_t other : {1, 2, 3}) EXPECT_EQ(sequences[other].slot_index, -1);
}

TEST(HopperMapsTest, BoundariesCountInWholeStates) {
  std::vector<SequenceDescriptor> sequences = {Packed(0, 130, 0), Packed(130, 64, 1), Packed(194, 64, 2),
                                               Packed(258, 64, 3)};
  sequences[0].all_boundaries = StateAt(2 * kStateBytes);
  sequences[1].all_boundaries = StateAt(kStateBytes);
  sequences[2].all_boundaries = StateAt(7 * kStateBytes + 16);  // at no whole distance
  sequences[3].all_boundaries = StateAt(8 * kStateBytes);
  sequences[3].boundary_count = 1;  // single ones go by rows, and then all do
  Plan(sequences);
  EXPECT_EQ(sequences[0].boundary_state, 1);
  EXPECT_EQ(sequences[1].boundary_state, 0);
  EXPECT_EQ(sequences[2].boundary_state, -1);
  EXPECT_EQ(sequences[3].boundary_state, -1);
}

}  // namespace
}  // namespace gdpcache::kernels::cuda
