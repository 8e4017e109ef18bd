#ifndef GDPCACHE_KERNELS_DEVICE_MEMORY_H_
#define GDPCACHE_KERNELS_DEVICE_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace gdpcache::kernels {

/// How full the memory is that a backend's comes from, whoever uses it.
struct DeviceMemory {
  std::int64_t used_bytes = 0;
  std::int64_t total_bytes = 0;
};

/// Of the backend that was created with `options` and says this of itself: the GPU's; on the CPU the host's, or what
/// the process's control group may use of it. UNAVAILABLE when the device is lost. Thread-safe.
absl::StatusOr<DeviceMemory> ReadDeviceMemory(const DeviceInfo& info, const BackendOptions& options);

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_DEVICE_MEMORY_H_
