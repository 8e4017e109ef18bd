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

/// Expanded tokens up to which a launch counts as one of short sequences, which are initial states more than anything.
inline constexpr std::int64_t kHopperShort = kHopperChunk;

/// Expanded tokens up to which a sequence needs no tensor maps.
inline constexpr std::int64_t kHopperUnmapped = 8;

/// Descriptors that travel with the launch itself instead of being uploaded.
inline constexpr std::size_t kHopperInlineBytes = 3840;  // 4 KB with the rest of the arguments

/// The first tensor maps of a launch.
inline constexpr int kInitialStateMap = 0;
inline constexpr int kSlotMap = 1;
inline constexpr int kBoundaryMap = 2;
inline constexpr int kStateMaps = 3;

/// How a thread block divides its shared memory.
enum class HopperBuffers : std::int32_t {
  kUsual,
  kShort,  // two for initial states; for sequences of no more than kHopperShort tokens
  kDeep,   // one less for results and a chunk more on its way; for boundaries that are small or rare
};

/// How a launch is divided among thread blocks.
struct HopperTiling {
  std::int32_t value_tile = 0;   // columns one thread block works on
  std::int32_t value_tiles = 0;  // of a head
  std::int32_t cluster = 0;      // thread blocks that share w and k; divides value_tiles
  HopperBuffers buffers = HopperBuffers::kUsual;
};

/// A block of descriptors holds the sequences, longest first, then the boundaries, then the tensor maps.
struct HopperArguments {
  LaunchShape shape;
  std::int64_t items = 0;  // sequences x heads x clusters of value tiles
  HopperTiling tiling;
  const std::byte* uploaded_block = nullptr;  // null: use inline_block
  std::int64_t boundaries_offset = 0;
  std::int64_t maps_offset = 0;
  unsigned long long* counters = nullptr;  // two zeros; left as zeros
  alignas(128) std::byte inline_block[kHopperInlineBytes];
};

/// Whether the kernel covers this shape.
bool HopperCovers(const LaunchShape& shape);

/// Sets the kernels up on the current device; before the first launch there.
cudaError_t PrepareHopperRecurrence(int multiprocessors);

/// What decides how a launch is divided, besides its shape.
struct HopperWork {
  std::int64_t sequences = 0;
  std::int64_t longest = 0;  // expanded tokens of a sequence
  int boundary_bytes = 0;    // of an element of all boundaries, as the products stage it; 0: none are wanted
  int multiprocessors = 0;
};

/// Narrow tiles where there are few (sequence, head) pairs, so that more multiprocessors share the work; clusters where
/// they pay. No bit depends on it.
HopperTiling ChooseHopperTiling(const LaunchShape& shape, const HopperWork& work);

/// Queues the kernel.
cudaError_t LaunchHopperRecurrence(const HopperArguments& arguments, cudaStream_t stream);

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_H_
