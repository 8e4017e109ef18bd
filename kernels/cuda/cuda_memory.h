#ifndef GDPCACHE_KERNELS_CUDA_CUDA_MEMORY_H_
#define GDPCACHE_KERNELS_CUDA_CUDA_MEMORY_H_

#include "absl/status/statusor.h"
#include "kernels/device_memory.h"

namespace gdpcache::kernels {

/// Of NVIDIA device number `device`, all processes together. UNAVAILABLE when it is lost.
absl::StatusOr<DeviceMemory> ReadCudaMemory(int device);

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_CUDA_CUDA_MEMORY_H_
