#ifndef GDPCACHE_KERNELS_CUDA_CUDA_CHECK_H_
#define GDPCACHE_KERNELS_CUDA_CUDA_CHECK_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gdpcache::kernels::cuda {

/// OK for cudaSuccess. Otherwise the message names `what` was tried and CUDA's words, and the code is
/// RESOURCE_EXHAUSTED when memory ran out, UNAVAILABLE when there is no usable device or the device is lost (an error
/// every later call repeats), INTERNAL for anything else.
absl::Status ToStatus(cudaError_t error, absl::string_view what);

}  // namespace gdpcache::kernels::cuda

/// Returns from a function of absl::Status or absl::StatusOr when a CUDA runtime call fails.
#define GDPCACHE_RETURN_IF_CUDA_ERROR(call)                                 \
  do {                                                                      \
    if (const cudaError_t cuda_error = (call); cuda_error != cudaSuccess) { \
      return ::gdpcache::kernels::cuda::ToStatus(cuda_error, #call);        \
    }                                                                       \
  } while (false)

#endif  // GDPCACHE_KERNELS_CUDA_CUDA_CHECK_H_
