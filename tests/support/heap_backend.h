#ifndef GDPCACHE_TESTS_SUPPORT_HEAP_BACKEND_H_
#define GDPCACHE_TESTS_SUPPORT_HEAP_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/backend.h"

namespace gdpcache::test {

/// Plain memory and byte copies without any arithmetic, for tests of the domain: RunRecurrence, FindNonFinite and
/// copies between dtypes are UNIMPLEMENTED. Every operation is complete when its call returns. Thread-safe.
class HeapBackend final : public kernels::Backend {
 public:
  ~HeapBackend() override;

  /// Bytes allocated and not yet freed.
  std::int64_t allocated_bytes() const { return allocated_bytes_; }

  kernels::DeviceInfo device_info() const override;
  absl::StatusOr<kernels::Buffer> Allocate(std::size_t size, kernels::MemoryKind kind) override;
  absl::StatusOr<std::unique_ptr<kernels::Stream>> CreateStream() override;
  absl::Status RunRecurrence(const kernels::RecurrenceShape& shape, absl::Span<const kernels::Sequence> sequences,
                             kernels::Stream& stream) override;
  absl::Status CopyStates(const kernels::RecurrenceShape& shape, absl::Span<const kernels::StateCopy> copies,
                          kernels::Stream& stream) override;
  absl::Status CopyBytes(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& stream) override;
  absl::Status ZeroBytes(absl::Span<const kernels::ByteRange> ranges, kernels::Stream& stream) override;
  absl::StatusOr<std::int64_t> FindNonFinite(absl::Span<const kernels::FiniteCheck> ranges,
                                             kernels::Stream& stream) override;
  absl::Status Synchronize(kernels::Stream& stream) override;

 private:
  void Free(void* data, std::size_t size, kernels::MemoryKind kind) noexcept override;

  std::atomic<std::int64_t> allocated_bytes_ = 0;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_HEAP_BACKEND_H_
