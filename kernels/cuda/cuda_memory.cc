#include "kernels/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_check.h"

namespace gdpcache::kernels {

absl::StatusOr<DeviceMemory> ReadCudaMemory(int device) {
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
  std::size_t free = 0;
  std::size_t total = 0;
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total));
  return DeviceMemory{static_cast<std::int64_t>(total - free), static_cast<std::int64_t>(total)};
}

}  // namespace gdpcache::kernels
