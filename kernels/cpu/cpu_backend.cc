#include "kernels/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/system_limits.h"

namespace gdpcache::kernels {
namespace {

constexpr std::size_t kAlignment = 64;

// From this size on memory is mapped, so that its pages exist only once they are touched.
constexpr std::size_t kMinMappedBytes = std::size_t{1} << 20;

// Waking a thread costs tens of microseconds: each helper must get work worth more than that.
constexpr double kMinHelperMultiplyAdds = 1 << 20;
constexpr std::int64_t kMinHelperBytes = std::int64_t{1} << 20;

// Work is handed out in portions small enough to balance and large enough to make handing out cheap.
constexpr double kPortionMultiplyAdds = 1 << 19;
constexpr std::int64_t kPortionBytes = std::int64_t{1} << 18;

// Loading and storing a state takes about as long as this many tokens' arithmetic on it.
constexpr double kStatePassTokens = 8;

class CpuStream final : public Stream {};

std::int64_t CeilDivide(std::int64_t dividend, std::int64_t divisor) { return (dividend + divisor - 1) / divisor; }

/// The width of value tiles: as wide as possible, because every tile of a head reads the same k and w, but narrower
/// when there would not be a few items for every thread.
std::int64_t TileColumns(const RecurrenceShape& shape, std::int64_t sequences, int threads) {
  constexpr std::int64_t kItemsPerThread = 4;
  const std::int64_t heads = sequences * shape.heads;
  std::int64_t tiles = CeilDivide(shape.value_dim, cpu::kMaxTileColumns);
  if (threads > 1 && heads * tiles < kItemsPerThread * threads) {
    tiles = std::max(
        tiles, std::min(CeilDivide(kItemsPerThread * threads, heads), CeilDivide(shape.value_dim, cpu::kTileQuantum)));
  }
  const std::int64_t columns = CeilDivide(shape.value_dim, tiles);
  return CeilDivide(columns, cpu::kTileQuantum) * cpu::kTileQuantum;
}

/// Sequence numbers, longest first.
std::vector<std::size_t> LongestFirst(absl::Span<const Sequence> sequences) {
  std::vector<std::size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sequences[a].length > sequences[b].length; });
  return order;
}

bool HasNonFinite(const void* data, DataType dtype, std::int64_t first, std::int64_t count) {
  // All exponent bits set; whole blocks at a time, so that the loop is vectorised.
  const auto search = [&](const auto* bits, auto exponent) {
    bool found = false;
    for (std::int64_t i = first; i < first + count; ++i) found |= (bits[i] & exponent) == exponent;
    return found;
  };
  switch (dtype) {
    case DataType::kFloat32:
      return search(static_cast<const std::uint32_t*>(data), std::uint32_t{0x7F800000});
    case DataType::kBFloat16:
      return search(static_cast<const std::uint16_t*>(data), std::uint16_t{0x7F80});
    case DataType::kFloat16:
      return search(static_cast<const std::uint16_t*>(data), std::uint16_t{0x7C00});
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(int threads) {
  if (threads < 0)
    return absl::InvalidArgumentError(absl::StrCat("cpu_threads is ", threads, "; it must be at least 0"));
  absl::StatusOr<std::unique_ptr<cpu::ThreadPool>> pool =
      cpu::ThreadPool::Create(threads == 0 ? cpu::AvailableProcessors() : threads);
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<CpuBackend>(new CpuBackend(*std::move(pool)));
}

CpuBackend::CpuBackend(std::unique_ptr<cpu::ThreadPool> pool)
    : memory_bytes_(cpu::AvailableMemoryBytes()), pool_(std::move(pool)) {}

DeviceInfo CpuBackend::device_info() const {
  return {"cpu",
          absl::StrCat(cpu::SimdTargetName(), ", ", pool_->threads(), pool_->threads() == 1 ? " thread" : " threads"),
          memory_bytes_};
}

absl::StatusOr<Buffer> CpuBackend::Allocate(std::size_t size, MemoryKind kind) {
  const auto exhausted = [&](const std::string& why) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size, " bytes: ", why));
  };
  if (size > static_cast<std::size_t>(memory_bytes_)) {
    return exhausted(absl::StrCat("the process may use ", memory_bytes_));
  }
  if (size < kMinMappedBytes) {
    const std::size_t whole_lines = std::max(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
    void* const data = std::aligned_alloc(kAlignment, whole_lines);
    if (data == nullptr) return exhausted("the allocator has none left");
    return Buffer(this, data, size, kind);
  }
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return exhausted(std::strerror(errno));
  ::madvise(data, size, MADV_HUGEPAGE);  // a state pass is bound by memory; where refused, small pages do
  return Buffer(this, data, size, kind);
}

void CpuBackend::Free(void* data, std::size_t size, MemoryKind /*kind*/) noexcept {
  if (size < kMinMappedBytes) {
    std::free(data);
  } else {
    ::munmap(data, size);
  }
}

absl::StatusOr<std::unique_ptr<Stream>> CpuBackend::CreateStream() { return std::make_unique<CpuStream>(); }

std::unique_ptr<cpu::Scratch> CpuBackend::TakeScratch() {
  {
    const std::lock_guard<std::mutex> lock(scratch_mutex_);
    if (!free_scratch_.empty()) {
      std::unique_ptr<cpu::Scratch> scratch = std::move(free_scratch_.back());
      free_scratch_.pop_back();
      return scratch;
    }
  }
  return std::unique_ptr<cpu::Scratch>(new cpu::Scratch);  // not make_unique, which would zero it
}

void CpuBackend::GiveScratchBack(std::unique_ptr<cpu::Scratch> scratch) {
  const std::lock_guard<std::mutex> lock(scratch_mutex_);
  free_scratch_.push_back(std::move(scratch));
}

absl::Status CpuBackend::RunRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences,
                                       Stream& /*stream*/) {
  if (absl::Status status = ValidateRecurrence(shape, sequences); !status.ok()) return status;
  if (sequences.empty()) return absl::OkStatus();

  const std::vector<std::size_t> order = LongestFirst(sequences);
  const auto count = static_cast<std::int64_t>(sequences.size());
  const std::int64_t tile_columns = TileColumns(shape, count, pool_->threads());
  const std::int64_t tiles = CeilDivide(shape.value_dim, tile_columns);
  const std::int64_t items = count * shape.heads * tiles;
  const auto sequence_of = [&](std::int64_t item) -> const Sequence& {
    return sequences[order[static_cast<std::size_t>(item / (shape.heads * tiles))]];
  };
  const auto cost_of = [&](const Sequence& sequence) {  // in multiply-adds of one item
    const auto state_elements = static_cast<double>(shape.key_dim * std::min(tile_columns, shape.value_dim));
    return (static_cast<double>(sequence.length) + kStatePassTokens) * 2 * state_elements;
  };

  double total_cost = 0;
  for (const Sequence& sequence : sequences) total_cost += cost_of(sequence) * static_cast<double>(shape.heads * tiles);
  const auto helpers =
      static_cast<int>(std::min({static_cast<double>(pool_->threads() - 1), static_cast<double>(items - 1),
                                 total_cost / kMinHelperMultiplyAdds}));

  std::atomic<std::int64_t> next = 0;
  pool_->Run(helpers, [&] {
    std::unique_ptr<cpu::Scratch> scratch = TakeScratch();
    while (true) {
      std::int64_t first = next.load(std::memory_order_relaxed);
      std::int64_t end = 0;
      do {
        if (first >= items) break;
        const auto portion = static_cast<std::int64_t>(kPortionMultiplyAdds / cost_of(sequence_of(first)));
        end = first + std::clamp(portion, std::int64_t{1}, items - first);
      } while (!next.compare_exchange_weak(first, end, std::memory_order_relaxed));
      if (first >= items) break;
      for (std::int64_t item = first; item < end; ++item) {
        const std::int64_t first_column = item % tiles * tile_columns;
        cpu::RunItem({.shape = shape,
                      .sequence = sequence_of(item),
                      .head = item / tiles % shape.heads,
                      .first_column = first_column,
                      .columns = std::min(tile_columns, shape.value_dim - first_column)},
                     *scratch);
      }
    }
    GiveScratchBack(std::move(scratch));
  });
  return absl::OkStatus();
}

void CpuBackend::ForEachPiece(absl::Span<const std::int64_t> sizes, std::int64_t unit_bytes,
                              absl::FunctionRef<void(std::size_t, std::int64_t, std::int64_t)> piece) {
  std::int64_t total_units = 0;
  for (const std::int64_t size : sizes) total_units += size;
  const std::int64_t portion = std::max<std::int64_t>(1, kPortionBytes / unit_bytes);
  const auto helpers = static_cast<int>(std::min<std::int64_t>(
      pool_->threads() - 1, total_units / std::max<std::int64_t>(1, kMinHelperBytes / unit_bytes)));

  std::mutex mutex;  // guards the next piece to hand out
  std::size_t next_range = 0;
  std::int64_t next_unit = 0;
  pool_->Run(helpers, [&] {
    while (true) {
      std::size_t range = 0;
      std::int64_t first = 0;
      std::int64_t left = portion;  // units of this portion, which may span ranges
      {
        const std::lock_guard<std::mutex> lock(mutex);
        range = next_range;
        first = next_unit;
        while (left > 0 && next_range < sizes.size()) {
          const std::int64_t taken = std::min(left, sizes[next_range] - next_unit);
          left -= taken;
          next_unit += taken;
          if (next_unit == sizes[next_range]) {
            ++next_range;
            next_unit = 0;
          }
        }
      }
      left = portion - left;
      if (left == 0) return;
      for (; left > 0; ++range, first = 0) {
        const std::int64_t count = std::min(left, sizes[range] - first);
        if (count > 0) piece(range, first, count);
        left -= count;
      }
    }
  });
}

absl::Status CpuBackend::CopyStates(const RecurrenceShape& shape, absl::Span<const StateCopy> copies,
                                    Stream& /*stream*/) {
  if (absl::Status status = ValidateStateCopies(shape, copies); !status.ok()) return status;
  const std::int64_t elements = shape.key_dim * shape.value_dim;
  const std::vector<std::int64_t> heads(copies.size(), shape.heads);
  ForEachPiece(
      heads, elements * ByteSize(DataType::kFloat32), [&](std::size_t range, std::int64_t first, std::int64_t count) {
        const StateView& destination = copies[range].destination;
        const ConstStateView& source = copies[range].source;
        if (source.data == destination.data) return;
        const std::int64_t size = ByteSize(destination.dtype);
        for (std::int64_t head = first; head < first + count; ++head) {
          std::byte* const to = static_cast<std::byte*>(destination.data) + head * destination.head_stride * size;
          const std::byte* const from =
              static_cast<const std::byte*>(source.data) + head * source.head_stride * ByteSize(source.dtype);
          if (source.data == nullptr) {
            std::memset(to, 0, static_cast<std::size_t>(elements * size));
          } else if (source.dtype == destination.dtype) {
            std::memcpy(to, from, static_cast<std::size_t>(elements * size));
          } else {
            cpu::ConvertElements(from, source.dtype, to, destination.dtype, elements);
          }
        }
      });
  return absl::OkStatus();
}

absl::Status CpuBackend::CopyBytes(absl::Span<const ByteCopy> copies, Stream& /*stream*/) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(copies.size());
  for (const ByteCopy& copy : copies) sizes.push_back(static_cast<std::int64_t>(copy.size));
  ForEachPiece(sizes, 1, [&](std::size_t range, std::int64_t first, std::int64_t count) {
    std::memcpy(static_cast<std::byte*>(copies[range].destination) + first,
                static_cast<const std::byte*>(copies[range].source) + first, static_cast<std::size_t>(count));
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::ZeroBytes(absl::Span<const ByteRange> ranges, Stream& /*stream*/) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(ranges.size());
  for (const ByteRange& range : ranges) sizes.push_back(static_cast<std::int64_t>(range.size));
  ForEachPiece(sizes, 1, [&](std::size_t range, std::int64_t first, std::int64_t count) {
    std::memset(static_cast<std::byte*>(ranges[range].data) + first, 0, static_cast<std::size_t>(count));
  });
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> CpuBackend::FindNonFinite(absl::Span<const FiniteCheck> ranges, Stream& /*stream*/) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(ranges.size());
  for (const FiniteCheck& range : ranges) sizes.push_back(range.elements);
  const auto none = static_cast<std::int64_t>(ranges.size());
  std::atomic<std::int64_t> found = none;
  ForEachPiece(sizes, ByteSize(DataType::kFloat32), [&](std::size_t range, std::int64_t first, std::int64_t count) {
    const auto index = static_cast<std::int64_t>(range);
    std::int64_t lowest = found.load(std::memory_order_relaxed);
    if (index >= lowest || !HasNonFinite(ranges[range].data, ranges[range].dtype, first, count)) return;
    while (index < lowest && !found.compare_exchange_weak(lowest, index, std::memory_order_relaxed)) {
    }
  });
  return found == none ? -1 : found.load();
}

absl::Status CpuBackend::Synchronize(Stream& /*stream*/) { return absl::OkStatus(); }

}  // namespace gdpcache::kernels
