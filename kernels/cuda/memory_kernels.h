#ifndef GDPCACHE_KERNELS_CUDA_MEMORY_KERNELS_H_
#define GDPCACHE_KERNELS_CUDA_MEMORY_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/descriptors.h"

/// Kernels that move or inspect memory. Descriptors are in device memory.
namespace gdpcache::kernels::cuda {

/// A run of bytes to copy, or to clear where there is no source; all of one length in a launch.
struct ByteRun {
  void* destination = nullptr;
  const void* source = nullptr;
};

/// Addresses and lengths of runs are multiples of it.
inline constexpr std::int64_t kRunAlignment = 16;

/// Runs that travel with the launch itself instead of being uploaded, as distances from the first of their addresses.
struct InlineRuns {
  static constexpr std::size_t kCapacity = 496;  // a launch has 4 KB of arguments
  static constexpr std::uint32_t kNoSource = 0xffffffff;

  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  std::uint32_t destinations[kCapacity];  // in units of kRunAlignment
  std::uint32_t sources[kCapacity];
};

/// Copies `count` runs of `bytes` each; `uploaded` is null where the first of `inline_runs` are meant.
cudaError_t LaunchCopyRuns(const ByteRun* uploaded, const InlineRuns& inline_runs, std::int64_t count,
                           std::int64_t bytes, cudaStream_t stream);

/// Copies, converts or clears whole states of any form, see Backend::CopyStates.
cudaError_t LaunchCopyStates(const LaunchShape& shape, const StateCopyDescriptor* copies, std::int64_t count,
                             cudaStream_t stream);

/// Lowers *first to the index of the first range that holds a NaN or an infinity.
cudaError_t LaunchFindNonFinite(const FiniteCheckDescriptor* ranges, std::int64_t count, unsigned long long* first,
                                int multiprocessors, cudaStream_t stream);

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_MEMORY_KERNELS_H_
