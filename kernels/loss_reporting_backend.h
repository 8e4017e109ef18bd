#ifndef GDPCACHE_KERNELS_LOSS_REPORTING_BACKEND_H_
#define GDPCACHE_KERNELS_LOSS_REPORTING_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace gdpcache::kernels {

/// Passes every call on to another backend, and tells when one of them finds the device lost (UNAVAILABLE), whoever
/// made it and whatever becomes of the error: a caller may take a refused allocation for a lack of memory. A wait that
/// fails leaves open what has been done, so it counts as the loss, too. Thread-safe.
class LossReportingBackend final : public Backend {
 public:
  /// `on_lost` runs on whichever thread finds out, maybe more than once. `real` must outlive this.
  LossReportingBackend(Backend& real, std::function<void(const absl::Status&)> on_lost)
      : real_(real), on_lost_(std::move(on_lost)) {}

  DeviceInfo device_info() const override { return real_.device_info(); }
  MemorySharing* memory_sharing() override { return real_.memory_sharing(); }
  absl::StatusOr<Buffer> Allocate(std::size_t size, MemoryKind kind) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::Status RunRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences,
                             Stream& stream) override;
  absl::Status CopyStates(const RecurrenceShape& shape, absl::Span<const StateCopy> copies, Stream& stream) override;
  absl::Status CopyBytes(absl::Span<const ByteCopy> copies, Stream& stream) override;
  absl::Status CopyBytesAhead(absl::Span<const ByteCopy> copies, Stream& stream) override;
  absl::Status CopyBytesAside(absl::Span<const ByteCopy> copies, Stream& stream) override;
  absl::Status ZeroBytes(absl::Span<const ByteRange> ranges, Stream& stream) override;
  absl::StatusOr<std::int64_t> FindNonFinite(absl::Span<const FiniteCheck> ranges, Stream& stream) override;
  absl::Status Synchronize(Stream& stream) override;
  absl::StatusOr<std::unique_ptr<Event>> Record(Stream& stream) override;
  absl::Status Wait(Event& event) override;
  absl::StatusOr<bool> HasHappened(Event& event) override;
  absl::Status Await(Event& event, Stream& stream) override;

 private:
  template <typename Result>
  Result Reported(Result result) const;
  absl::Status Waited(absl::Status status) const;
  // Buffers come from and go back to the real backend.
  void Free(void* /*data*/, std::size_t /*size*/, MemoryKind /*kind*/) noexcept override {}

  Backend& real_;
  const std::function<void(const absl::Status&)> on_lost_;
};

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_LOSS_REPORTING_BACKEND_H_
