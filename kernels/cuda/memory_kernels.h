#ifndef GDPCACHE_KERNELS_CUDA_MEMORY_KERNELS_H_
#define GDPCACHE_KERNELS_CUDA_MEMORY_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/descriptors.h"

/// Kernels that move or inspect memory. Descriptors are in device memory.
namespace gdpcache::kernels::cuda {

/// Descriptors that travel with the launch itself instead of being uploaded.
struct InlineStateCopies {
  static constexpr std::int64_t kCapacity = 64;
  StateCopyDescriptor copies[kCapacity];
};

/// Copies, converts or clears whole states, see Backend::CopyStates. `uploaded` is null where the first `count` of
/// `inline_copies` are meant.
cudaError_t LaunchCopyStates(const LaunchShape& shape, const StateCopyDescriptor* uploaded,
                             const InlineStateCopies& inline_copies, std::int64_t count, cudaStream_t stream);

/// Lowers *first to the index of the first range that holds a NaN or an infinity.
cudaError_t LaunchFindNonFinite(const FiniteCheckDescriptor* ranges, std::int64_t count, unsigned long long* first,
                                int multiprocessors, cudaStream_t stream);

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_MEMORY_KERNELS_H_
