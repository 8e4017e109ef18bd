#ifndef GDPCACHE_KERNELS_CUDA_CUDA_BACKEND_H_
#define GDPCACHE_KERNELS_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace gdpcache::kernels {

/// The backend on NVIDIA device number `device`, compute capability 8.0 or newer. UNAVAILABLE when there is no driver,
/// no such device, or one this build has no code for.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(int device);

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_CUDA_CUDA_BACKEND_H_
