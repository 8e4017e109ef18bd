#ifndef GDPCACHE_KERNELS_CUDA_RECURRENCE_GENERIC_H_
#define GDPCACHE_KERNELS_CUDA_RECURRENCE_GENERIC_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/descriptors.h"

/// The recurrence for every shape and input dtype on every supported chip, by the tensor cores. bfloat16 and float16
/// inputs: S and x are rounded to that dtype on their way into a product or, for high precision, keep 21 bits there, as
/// they always do for float32 inputs.
namespace gdpcache::kernels::cuda {

/// What a launch may use of the device.
struct DeviceLimits {
  int multiprocessors = 0;
  int block_shared_bytes = 0;  // shared memory of one thread block
  int shared_bytes = 0;        // of a multiprocessor
};

/// Sets the kernels up on the current device; before the first launch there.
cudaError_t PrepareGenericRecurrence(const DeviceLimits& device);

/// Queues the kernel. `sequences` and `boundaries` are in device memory. Sums do not depend on anything but the shape
/// and the device.
cudaError_t LaunchGenericRecurrence(const LaunchShape& shape, const SequenceDescriptor* sequences,
                                    std::int64_t sequence_count, const BoundaryDescriptor* boundaries,
                                    const DeviceLimits& device, cudaStream_t stream);

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_RECURRENCE_GENERIC_H_
