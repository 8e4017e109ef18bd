#ifndef GDPCACHE_SERVER_ENGINE_DEVICE_SEGMENT_H_
#define GDPCACHE_SERVER_ENGINE_DEVICE_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/engine/call.h"
#include "server/engine/environment.h"
#include "server/engine/prefill_plan.h"
#include "server/engine/segment.h"
#include "server/engine/staging_pool.h"

namespace gdpcache::engine {

/// A segment's tensors where the arithmetic reaches them: the host memory itself where the backend has unified memory,
/// else copies in device memory. There its end waits for its work, so that no memory goes while it is used.
class DeviceSegment {
 public:
  DeviceSegment(DeviceSegment&& other) noexcept
      : backend_(std::exchange(other.backend_, nullptr)),
        stream_(other.stream_),
        memory_(other.memory_),
        copies_(other.copies_),
        buffers_(std::move(other.buffers_)),
        results_(std::move(other.results_)),
        end_(std::move(other.end_)) {}
  DeviceSegment& operator=(DeviceSegment&&) = delete;
  ~DeviceSegment();

  /// Whether a segment's copies run beside the arithmetic of the segments before and behind it.
  enum class Copies : std::uint8_t { kInOrder, kBesideArithmetic };

  /// Puts copies of the inputs on their way, and besides them `more`, which must touch nothing that earlier segments
  /// do. `account` is of Environment::device_staging, nullptr without one.
  static absl::StatusOr<DeviceSegment> Upload(const Environment& environment, StagingAccount* account,
                                              const PrefillPlan& plan, const Segment& segment,
                                              const SegmentMemory& host, Copies copies,
                                              std::vector<kernels::ByteCopy> more, kernels::Stream& stream);

  /// What the arithmetic reads and writes.
  const SegmentMemory& memory() const { return memory_; }

  /// Puts the results on their way to host memory; complete after Wait or Backend::Synchronize. Comes behind work that
  /// cannot be taken back, so a refusal counts as the loss of the device: UNAVAILABLE.
  absl::Status Download();

  /// Waits until the results are there, if they come beside the arithmetic.
  absl::Status Wait();

 private:
  DeviceSegment(kernels::Backend* backend, kernels::Stream& stream, const SegmentMemory& memory, Copies copies)
      : backend_(backend), stream_(&stream), memory_(memory), copies_(copies) {}

  kernels::Backend* backend_;  // nullptr where there is nothing to wait for
  kernels::Stream* stream_;
  SegmentMemory memory_;
  Copies copies_;
  std::vector<StagingBuffer> buffers_;
  std::vector<kernels::ByteCopy> results_;
  std::unique_ptr<kernels::Event> end_;  // of a download beside the arithmetic
};

/// Admits a call to device memory: `segments` at a time of `segment_bytes` of inputs and results each, and
/// `state_bytes` that stay as long as the call. Nothing (nullptr) where the backend has unified memory.
absl::StatusOr<std::shared_ptr<StagingAccount>> OpenDeviceAccount(const Environment& environment,
                                                                  const CallContext& context, int segments,
                                                                  std::int64_t segment_bytes, std::int64_t state_bytes);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_DEVICE_SEGMENT_H_
