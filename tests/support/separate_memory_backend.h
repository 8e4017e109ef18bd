#ifndef GDPCACHE_TESTS_SUPPORT_SEPARATE_MEMORY_BACKEND_H_
#define GDPCACHE_TESTS_SUPPORT_SEPARATE_MEMORY_BACKEND_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/backend.h"

namespace gdpcache::test {

/// A CPU backend that behaves as one with a device of its own: kDevice addresses are none of the host's, so that
/// whoever touches device memory by hand crashes, and arithmetic on host memory is refused (INTERNAL). Work is done in
/// the worst order and at the worst time that a stream allows, so that whoever does not wait gets wrong results: copies
/// ahead at once, the rest when somebody waits for it, copies aside last. What is wrong with it comes out then, too.
/// Thread-safe, but for events, which are the stream's thread's; its streams cannot wait for each other.
class SeparateMemoryBackend final : public kernels::Backend {
 public:
  /// `real` must outlive this.
  explicit SeparateMemoryBackend(kernels::Backend& real) : real_(real) {}

  /// Where a device address lies in the host's memory; any other address is returned as it is. For tests that look into
  /// device memory.
  static void* HostAddress(const void* address);

  kernels::DeviceInfo device_info() const override;
  absl::StatusOr<kernels::Buffer> Allocate(std::size_t size, kernels::MemoryKind kind) override;
  absl::StatusOr<std::unique_ptr<kernels::Stream>> CreateStream() override;
  absl::Status RunRecurrence(const kernels::RecurrenceShape& shape, absl::Span<const kernels::Sequence> sequences,
                             kernels::Stream& stream) override;
  absl::Status CopyStates(const kernels::RecurrenceShape& shape, absl::Span<const kernels::StateCopy> copies,
                          kernels::Stream& stream) override;
  absl::Status CopyBytes(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& stream) override;
  absl::Status CopyBytesAhead(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& stream) override;
  absl::Status CopyBytesAside(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& stream) override;
  absl::Status ZeroBytes(absl::Span<const kernels::ByteRange> ranges, kernels::Stream& stream) override;
  absl::StatusOr<std::int64_t> FindNonFinite(absl::Span<const kernels::FiniteCheck> ranges,
                                             kernels::Stream& stream) override;
  absl::Status Synchronize(kernels::Stream& stream) override;
  absl::StatusOr<std::unique_ptr<kernels::Event>> Record(kernels::Stream& stream) override;
  absl::Status Wait(kernels::Event& event) override;

 private:
  void Free(void* data, std::size_t size, kernels::MemoryKind kind) noexcept override;

  kernels::Backend& real_;
  std::mutex mutex_;
  std::map<void*, kernels::Buffer> device_;  // by device address
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_SEPARATE_MEMORY_BACKEND_H_
