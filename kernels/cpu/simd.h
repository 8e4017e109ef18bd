#ifndef GDPCACHE_KERNELS_CPU_SIMD_H_
#define GDPCACHE_KERNELS_CPU_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "kernels/data_type.h"
#include "kernels/recurrence.h"

/// The vectorised inner parts of the CPU backend, dispatched at run time to the best SIMD target of the processor.
/// Every target gives the same bits.
namespace gdpcache::kernels::cpu {

/// Widest tile of value columns that one item of work covers.
inline constexpr std::int64_t kMaxTileColumns = 128;

/// Columns of a tile are a multiple of this, except the last tile's of a state: no narrower, no target has partial
/// vectors because of tiling.
inline constexpr std::int64_t kTileQuantum = 32;

/// Working memory of one item. Rows are a cache line longer than the widest tile, because rows a power of two apart
/// would compete for the same few sets of the first-level cache.
struct Scratch {
  static constexpr std::size_t kMaxRows = 128;  // the largest chunk
  static constexpr std::size_t kKeyStride = kMaxKeyDim + 16;
  static constexpr std::size_t kTileStride = kMaxTileColumns + 16;

  alignas(64) float w[kMaxRows * kKeyStride];         // the chunk's w
  alignas(64) float k[kMaxRows * kKeyStride];         // the chunk's k
  alignas(64) float x[kMaxRows * kTileStride];        // the tile's u, then x
  alignas(64) float state[kMaxKeyDim * kTileStride];  // the tile of S
  alignas(64) float decay[kMaxRows + 1];              // per row 2^(g[last] - g[row]), then 2^g[last]
};

/// One head of one sequence, restricted to `columns` value columns from `first_column`: what runs without any exchange.
struct RecurrenceItem {
  const RecurrenceShape& shape;
  const Sequence& sequence;
  std::int64_t head;
  std::int64_t first_column;
  std::int64_t columns;  // at most kMaxTileColumns
};

/// Runs the whole recurrence of `item`, all its stores included.
void RunItem(const RecurrenceItem& item, Scratch& scratch);

/// Converts `count` elements; values round to nearest even. The ranges do not overlap.
void ConvertElements(const void* from, DataType from_dtype, void* to, DataType to_dtype, std::int64_t count);

/// out[i] = 2^x[i], as the recurrence computes its decays.
void Exp2Elements(const float* x, float* out, std::int64_t count);

/// The name of the SIMD target that the functions above run on, e.g. "AVX3".
const char* SimdTargetName();

}  // namespace gdpcache::kernels::cpu

#endif  // GDPCACHE_KERNELS_CPU_SIMD_H_
