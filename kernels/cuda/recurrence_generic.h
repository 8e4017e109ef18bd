#ifndef GDPCACHE_KERNELS_CUDA_RECURRENCE_GENERIC_H_
#define GDPCACHE_KERNELS_CUDA_RECURRENCE_GENERIC_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/descriptors.h"

/// The recurrence for every shape and input dtype on every supported chip, in float32 arithmetic: S and x
/// stay float32 throughout, so that every launch is of high precision.
namespace gdpcache::kernels::cuda {

/// Sets the kernel up on the current device; before the first launch there.
cudaError_t PrepareGenericRecurrence();

/// Queues the kernel. `sequences` and `boundaries` are in device memory.
cudaError_t LaunchGenericRecurrence(const LaunchShape& shape, const SequenceDescriptor* sequences,
                                    std::int64_t sequence_count, const BoundaryDescriptor* boundaries,
                                    int multiprocessors, cudaStream_t stream);

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_RECURRENCE_GENERIC_H_
