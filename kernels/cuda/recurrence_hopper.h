#ifndef GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_H_
#define GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/descriptors.h"

/// The recurrence for compute capability 9.0: bfloat16 and float16 inputs, chunks of 64, key and value dimensions in
/// multiples of 8.
namespace gdpcache::kernels::cuda {

inline constexpr int kHopperChunk = 64;

/// Expanded tokens up to which a launch counts as one of short sequences.
inline constexpr std::int64_t kHopperShort = std::int64_t{4} * kHopperChunk;

/// Descriptors that travel with the launch itself instead of being uploaded.
inline constexpr std::size_t kHopperInlineBytes = 12288;

/// A block of descriptors: four tensor maps (k, w, u, all boundaries) per sequence, then the sequences, longest first,
/// then the boundaries.
struct HopperArguments {
  LaunchShape shape;
  std::int64_t items = 0;       // sequences x heads x value tiles
  std::int32_t value_tile = 0;  // columns one thread block works on, as HopperValueTile says
  std::int32_t value_tiles = 0;
  std::int32_t is_short = 0;                  // no sequence is longer than kHopperShort
  const std::byte* uploaded_block = nullptr;  // null: use inline_block
  std::int64_t sequences_offset = 0;
  std::int64_t boundaries_offset = 0;
  unsigned long long* counters = nullptr;  // two zeros; left as zeros
  alignas(128) std::byte inline_block[kHopperInlineBytes];
};

/// Whether the kernel covers this shape.
bool HopperCovers(const LaunchShape& shape);

/// Sets the kernels up on the current device; before the first launch there.
cudaError_t PrepareHopperRecurrence();

/// Value columns per thread block: narrow tiles where there are few (sequence, head) pairs, so that more
/// multiprocessors share the stores. Sums do not depend on it.
int HopperValueTile(const LaunchShape& shape, std::int64_t sequences, int multiprocessors);

/// Queues the kernel on `multiprocessors` or fewer thread blocks.
cudaError_t LaunchHopperRecurrence(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream);

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_H_
