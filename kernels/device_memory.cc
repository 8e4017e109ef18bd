#include "kernels/device_memory.h"

#include "kernels/cpu/system_limits.h"
#ifdef GDPCACHE_HAVE_CUDA
#include "kernels/cuda/cuda_memory.h"
#endif

namespace gdpcache::kernels {

absl::StatusOr<DeviceMemory> ReadDeviceMemory(const DeviceInfo& info, const BackendOptions& options) {
#ifdef GDPCACHE_HAVE_CUDA
  if (info.backend == "cuda") return ReadCudaMemory(options.cuda_device);
#else
  static_cast<void>(info);
  static_cast<void>(options);
#endif
  const cpu::HostMemory host = cpu::ReadHostMemory();
  return DeviceMemory{host.used_bytes, host.total_bytes};
}

}  // namespace gdpcache::kernels
