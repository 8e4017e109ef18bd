#ifndef GDPCACHE_KERNELS_MEMORY_SHARING_H_
#define GDPCACHE_KERNELS_MEMORY_SHARING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gdpcache::kernels {

class Stream;

/// What a backend with a device of its own can do with memory and events of other processes on the same host.
/// Thread-safe. Handles come from outside: nothing they hold may do harm.
class MemorySharing {
 public:
  MemorySharing() = default;
  MemorySharing(const MemorySharing&) = delete;
  MemorySharing& operator=(const MemorySharing&) = delete;
  virtual ~MemorySharing() = default;

  /// Tells other processes which device it is: "GPU-01234567-89ab-cdef-0123-456789abcdef".
  virtual std::string device_uuid() const = 0;

  /// Lets the device copy from and to mapped host memory at full speed, until Unpin.
  virtual absl::Status Pin(void* data, std::size_t size) = 0;
  virtual void Unpin(void* data) noexcept = 0;

  /// A whole allocation of another process, on the backend's device.
  struct DeviceMemory {
    void* data = nullptr;
    std::size_t size = 0;
  };
  /// `handle`: the 64 bytes of cudaIpcMemHandle_t. INVALID_ARGUMENT when it stands for no such memory.
  virtual absl::StatusOr<DeviceMemory> OpenMemory(absl::string_view handle) = 0;
  virtual void CloseMemory(void* data) noexcept = 0;

  /// `handle`: the 64 bytes of cudaIpcEventHandle_t. INVALID_ARGUMENT when it stands for no event.
  virtual absl::StatusOr<void*> OpenEvent(absl::string_view handle) = 0;
  virtual void CloseEvent(void* event) noexcept = 0;

  /// Whether all work that the event was last recorded behind is complete: then work that a stream is given from now on
  /// finds what it has written. No stream is let wait for such an event. Its client may see to it that it never
  /// happens, and a stream that waits cannot be stopped: it holds up others, which share the device's queues, and all
  /// that waits for the whole device, as freeing memory does.
  virtual bool HasHappened(void* event) = 0;
  /// The event happens when all earlier work of the stream is complete.
  virtual absl::Status RecordEvent(void* event, Stream& stream) = 0;

  /// `word`, in memory that is pinned, gets `value` when all earlier work of the stream is complete and to be seen by
  /// the host and by the device's other streams, those of other processes included. An error, after which nothing has
  /// been queued, where the device cannot.
  virtual absl::Status WriteValue(std::uint32_t* word, std::uint32_t value, Stream& stream) = 0;
};

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_MEMORY_SHARING_H_
