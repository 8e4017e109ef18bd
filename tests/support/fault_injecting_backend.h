#ifndef GDPCACHE_TESTS_SUPPORT_FAULT_INJECTING_BACKEND_H_
#define GDPCACHE_TESTS_SUPPORT_FAULT_INJECTING_BACKEND_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "kernels/backend.h"

namespace gdpcache::test {

/// Passes every call on to a real backend, except those it has been told to fail or to hold up. Thread-safe.
class FaultInjectingBackend final : public kernels::Backend {
 public:
  enum class Operation : std::uint8_t {
    kAllocate,
    kCreateStream,
    kRunRecurrence,
    kCopyStates,
    kCopyBytes,  // ahead and aside too
    kZeroBytes,
    kFindNonFinite,
    kRecord,
    kSynchronize,  // Wait too
    kQuery,
    kAwait,
  };
  static constexpr std::size_t kOperations = 11;

  /// `real` must outlive this.
  explicit FaultInjectingBackend(kernels::Backend& real) : real_(real) {}

  /// The next `passed` calls of the operation pass, the one after fails with `status`.
  void FailAfter(Operation operation, std::int64_t passed, absl::Status status);

  /// The next `passed` calls of the operation pass; all calls of any operation after them fail with `status`.
  void FailForEverAfter(Operation operation, std::int64_t passed, absl::Status status);

  /// Runs at the start of each call of the operation, on its thread: may block, to hold the call up.
  void BeforeEach(Operation operation, std::function<void()> hook);

  std::int64_t calls(Operation operation) const;

  /// Offers what the real backend cannot; outlives this.
  void OfferSharing(kernels::MemorySharing* sharing) { sharing_ = sharing; }

  kernels::DeviceInfo device_info() const override { return real_.device_info(); }
  kernels::MemorySharing* memory_sharing() override { return sharing_ != nullptr ? sharing_ : real_.memory_sharing(); }
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
  absl::StatusOr<bool> HasHappened(kernels::Event& event) override;
  absl::Status Await(kernels::Event& event, kernels::Stream& stream) override;

 private:
  struct Plan {
    std::int64_t calls = 0;
    std::int64_t passes = -1;  // -1: fails none
    bool for_ever = false;
    absl::Status failure;
    std::function<void()> hook;
  };

  void PlanFailure(Operation operation, std::int64_t passed, absl::Status status, bool for_ever);
  absl::Status Enter(Operation operation);
  // Buffers come from and go back to the real backend.
  void Free(void* /*data*/, std::size_t /*size*/, kernels::MemoryKind /*kind*/) noexcept override {}

  kernels::Backend& real_;
  kernels::MemorySharing* sharing_ = nullptr;
  mutable std::mutex mutex_;
  std::array<Plan, kOperations> plans_;
  absl::Status lost_;  // of every operation
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_FAULT_INJECTING_BACKEND_H_
