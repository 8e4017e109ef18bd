#ifndef GDPCACHE_KERNELS_CUDA_CUDA_MEMORY_SHARING_H_
#define GDPCACHE_KERNELS_CUDA_CUDA_MEMORY_SHARING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/memory_sharing.h"

namespace gdpcache::kernels::cuda {

/// CUDA's interprocess handles, and page-locking of memory that is already there.
class CudaMemorySharing final : public MemorySharing {
 public:
  CudaMemorySharing(int device, std::string device_uuid) : device_(device), device_uuid_(std::move(device_uuid)) {}

  std::string device_uuid() const override { return device_uuid_; }
  absl::Status Pin(void* data, std::size_t size) override;
  void Unpin(void* data) noexcept override;
  absl::StatusOr<DeviceMemory> OpenMemory(absl::string_view handle) override;
  void CloseMemory(void* data) noexcept override;
  absl::StatusOr<void*> OpenEvent(absl::string_view handle) override;
  void CloseEvent(void* event) noexcept override;
  /// True also of an event that cannot be asked, so that nobody waits for it: what is launched next tells whether the
  /// device is lost; if it is only the event, its client spoils its own results.
  bool HasHappened(void* event) override;
  absl::Status RecordEvent(void* event, Stream& stream) override;
  absl::Status WriteValue(std::uint32_t* word, std::uint32_t value, Stream& stream) override;

 private:
  const int device_;
  const std::string device_uuid_;
};

/// As nvidia-smi and PyTorch write it: "GPU-" and the 16 bytes in hexadecimal groups of 4, 2, 2, 2 and 6.
std::string FormatUuid(const char (&bytes)[16]);

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_CUDA_MEMORY_SHARING_H_
