#ifndef GDPCACHE_KERNELS_CPU_CPU_BACKEND_H_
#define GDPCACHE_KERNELS_CPU_CPU_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"

namespace gdpcache::kernels {

/// The recurrence on the processor's vector units. Work is complete when the call that gave it returns; both memory
/// kinds are plain memory, and descriptors may point to any memory of the process.
///
/// Inputs become float32; S and x stay float32 throughout: every launch is of high precision. Every element is one
/// chain of fused multiply-adds, over K ascending in w . S (starting from u) and over the chunk's rows ascending in k^T
/// . x (starting from the decayed S), so that no tiling, thread count or vector width changes a bit.
class CpuBackend final : public Backend {
 public:
  /// `threads` is the most a call runs on, its caller included; 0: AvailableProcessors(). INVALID_ARGUMENT when
  /// negative.
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(int threads);

  DeviceInfo device_info() const override;
  absl::StatusOr<Buffer> Allocate(std::size_t size, MemoryKind kind) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::Status RunRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences,
                             Stream& stream) override;
  absl::Status CopyStates(const RecurrenceShape& shape, absl::Span<const StateCopy> copies, Stream& stream) override;
  absl::Status CopyBytes(absl::Span<const ByteCopy> copies, Stream& stream) override;
  absl::Status ZeroBytes(absl::Span<const ByteRange> ranges, Stream& stream) override;
  absl::StatusOr<std::int64_t> FindNonFinite(absl::Span<const FiniteCheck> ranges, Stream& stream) override;
  absl::Status Synchronize(Stream& stream) override;

 private:
  explicit CpuBackend(std::unique_ptr<cpu::ThreadPool> pool);

  void Free(void* data, std::size_t size, MemoryKind kind) noexcept override;

  /// Calls `piece(range, first, count)` for pieces that together make up every range r of sizes[r] units, on as many
  /// threads as pay.
  void ForEachPiece(absl::Span<const std::int64_t> sizes, std::int64_t unit_bytes,
                    absl::FunctionRef<void(std::size_t range, std::int64_t first, std::int64_t count)> piece);

  std::unique_ptr<cpu::Scratch> TakeScratch();
  void GiveScratchBack(std::unique_ptr<cpu::Scratch> scratch);

  const std::int64_t memory_bytes_;
  const std::unique_ptr<cpu::ThreadPool> pool_;
  std::mutex scratch_mutex_;
  std::vector<std::unique_ptr<cpu::Scratch>> free_scratch_;
};

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_CPU_CPU_BACKEND_H_
