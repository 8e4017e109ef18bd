#include "kernels/cpu/simd.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

// The x86 targets left out add nothing that the kernels use; the others have vectors that cannot be array elements.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdpcache::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using namespace gdpcache::kernels::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): one namespace per target

constexpr std::size_t kKeyStride = Scratch::kKeyStride;
constexpr std::size_t kTileStride = Scratch::kTileStride;

// Registers of the two products: kBlockRows x kBlockVectors accumulators, the vectors of one row, one broadcast.
#if HWY_TARGET <= HWY_AVX3 || !HWY_ARCH_X86
constexpr std::size_t kBlockRows = 4;
constexpr std::size_t kBlockVectors = 4;
#else
constexpr std::size_t kBlockRows = 4;
constexpr std::size_t kBlockVectors = 2;
#endif

/// `rows` rows of `columns` elements, `from_stride` apart, become float32 rows `to_stride` apart, the last vector of
/// each filled up with zeros.
template <DataType kType>
void LoadRows(const void* from, std::size_t from_stride, std::size_t rows, std::size_t columns, float* to,
              std::size_t to_stride) {
  const FloatTag d;
  const auto* source = static_cast<const Stored<kType>*>(from);
  const std::size_t tail = columns % kLanes;
  const std::size_t whole = columns - tail;
  for (std::size_t row = 0; row < rows; ++row, source += from_stride, to += to_stride) {
    for (std::size_t column = 0; column < whole; column += kLanes) {
      hn::Store(LoadFloats<kType>(source + column), d, to + column);
    }
    if (tail != 0) hn::Store(LoadFloats<kType>(source + whole, tail), d, to + whole);
  }
}

/// The way back.
template <DataType kType>
void StoreRows(const float* from, std::size_t from_stride, std::size_t rows, std::size_t columns, void* to,
               std::size_t to_stride) {
  const FloatTag d;
  auto* target = static_cast<Stored<kType>*>(to);
  const std::size_t tail = columns % kLanes;
  const std::size_t whole = columns - tail;
  for (std::size_t row = 0; row < rows; ++row, from += from_stride, target += to_stride) {
    for (std::size_t column = 0; column < whole; column += kLanes) {
      StoreFloats<kType>(hn::Load(d, from + column), target + column);
    }
    if (tail != 0) StoreFloats<kType>(hn::Load(d, from + whole), target + whole, tail);
  }
}

void LoadRows(DataType dtype, const void* from, std::size_t from_stride, std::size_t rows, std::size_t columns,
              float* to, std::size_t to_stride) {
  switch (dtype) {
    case DataType::kFloat32:
      return LoadRows<DataType::kFloat32>(from, from_stride, rows, columns, to, to_stride);
    case DataType::kBFloat16:
      return LoadRows<DataType::kBFloat16>(from, from_stride, rows, columns, to, to_stride);
    case DataType::kFloat16:
      return LoadRows<DataType::kFloat16>(from, from_stride, rows, columns, to, to_stride);
  }
}

void StoreRows(DataType dtype, const float* from, std::size_t from_stride, std::size_t rows, std::size_t columns,
               void* to, std::size_t to_stride) {
  switch (dtype) {
    case DataType::kFloat32:
      return StoreRows<DataType::kFloat32>(from, from_stride, rows, columns, to, to_stride);
    case DataType::kBFloat16:
      return StoreRows<DataType::kBFloat16>(from, from_stride, rows, columns, to, to_stride);
    case DataType::kFloat16:
      return StoreRows<DataType::kFloat16>(from, from_stride, rows, columns, to, to_stride);
  }
}

/// x -= w . S for kRows rows of w and x and kVectors vectors of columns, K ascending.
template <std::size_t kRows, std::size_t kVectors>
HWY_INLINE void SubtractProductBlock(const float* w, const float* state, std::size_t key_dim, float* x) {
  const FloatTag d;
  Floats sums[kRows][kVectors];
  GDPCACHE_UNROLL
  for (std::size_t i = 0; i < kRows; ++i) {
    GDPCACHE_UNROLL
    for (std::size_t j = 0; j < kVectors; ++j) sums[i][j] = hn::Load(d, x + i * kTileStride + j * kLanes);
  }
  for (std::size_t key = 0; key < key_dim; ++key, ++w, state += kTileStride) {
    Floats row[kVectors];
    GDPCACHE_UNROLL
    for (std::size_t j = 0; j < kVectors; ++j) row[j] = hn::Load(d, state + j * kLanes);
    GDPCACHE_UNROLL
    for (std::size_t i = 0; i < kRows; ++i) {
      const Floats factor = hn::Set(d, w[i * kKeyStride]);
      GDPCACHE_UNROLL
      for (std::size_t j = 0; j < kVectors; ++j) sums[i][j] = NegFma(factor, row[j], sums[i][j]);
    }
  }
  GDPCACHE_UNROLL
  for (std::size_t i = 0; i < kRows; ++i) {
    GDPCACHE_UNROLL
    for (std::size_t j = 0; j < kVectors; ++j) hn::Store(sums[i][j], d, x + i * kTileStride + j * kLanes);
  }
}

/// S = S * decay + k^T . x for kRows rows of S and kVectors vectors of columns, tokens ascending.
template <std::size_t kRows, std::size_t kVectors>
HWY_INLINE void AddProductBlock(const float* k, const float* x, std::size_t tokens, float decay, float* state) {
  const FloatTag d;
  Floats sums[kRows][kVectors];
  const Floats decay_vector = hn::Set(d, decay);
  GDPCACHE_UNROLL
  for (std::size_t i = 0; i < kRows; ++i) {
    GDPCACHE_UNROLL
    for (std::size_t j = 0; j < kVectors; ++j) {
      sums[i][j] = hn::Mul(hn::Load(d, state + i * kTileStride + j * kLanes), decay_vector);
    }
  }
  for (std::size_t token = 0; token < tokens; ++token, k += kKeyStride, x += kTileStride) {
    Floats row[kVectors];
    GDPCACHE_UNROLL
    for (std::size_t j = 0; j < kVectors; ++j) row[j] = hn::Load(d, x + j * kLanes);
    GDPCACHE_UNROLL
    for (std::size_t i = 0; i < kRows; ++i) {
      const Floats factor = hn::Set(d, k[i]);
      GDPCACHE_UNROLL
      for (std::size_t j = 0; j < kVectors; ++j) sums[i][j] = Fma(factor, row[j], sums[i][j]);
    }
  }
  GDPCACHE_UNROLL
  for (std::size_t i = 0; i < kRows; ++i) {
    GDPCACHE_UNROLL
    for (std::size_t j = 0; j < kVectors; ++j) hn::Store(sums[i][j], d, state + i * kTileStride + j * kLanes);
  }
}

/// Fetches the rows of the chunk after this one while this one is computed: a head's rows lie too far apart for the
/// processor to see the pattern.
class RowPrefetcher {
 public:
  void Add(const void* tensor, std::size_t row_bytes, std::size_t stride_bytes, std::size_t rows) {
    streams_[count_++] = {static_cast<const std::byte*>(tensor), row_bytes, stride_bytes};
    rows_ = rows;
  }

  /// A small part of it; called once per block of a product.
  void Step() {
    for (std::size_t i = 0; i < kRowsPerStep && rows_ > 0; ++i, --rows_) {
      for (Stream& stream : streams_) {
        for (std::size_t at = 0; at < stream.row_bytes; at += kLineBytes) hwy::Prefetch(stream.next + at);
        stream.next += stream.stride_bytes;
      }
    }
  }

 private:
  struct Stream {
    const std::byte* next = nullptr;
    std::size_t row_bytes = 0;
    std::size_t stride_bytes = 0;
  };
  static constexpr std::size_t kLineBytes = 64;
  static constexpr std::size_t kRowsPerStep = 2;

  Stream streams_[3];
  std::size_t count_ = 0;
  std::size_t rows_ = 0;
};

/// All rows of one panel of kVectors vectors, kRows at a time, then what is left in halves.
template <std::size_t kRows, std::size_t kVectors>
void SubtractProductPanel(const float* w, const float* state, std::size_t key_dim, std::size_t rows, float* x,
                          RowPrefetcher& prefetcher) {
  for (; rows >= kRows; rows -= kRows, w += kRows * kKeyStride, x += kRows * kTileStride) {
    prefetcher.Step();
    SubtractProductBlock<kRows, kVectors>(w, state, key_dim, x);
  }
  if constexpr (kRows > 1) {
    if (rows != 0) SubtractProductPanel<kRows / 2, kVectors>(w, state, key_dim, rows, x, prefetcher);
  }
}

template <std::size_t kRows, std::size_t kVectors>
void AddProductPanel(const float* k, const float* x, std::size_t tokens, float decay, std::size_t rows, float* state,
                     RowPrefetcher& prefetcher) {
  for (; rows >= kRows; rows -= kRows, k += kRows, state += kRows * kTileStride) {
    prefetcher.Step();
    AddProductBlock<kRows, kVectors>(k, x, tokens, decay, state);
  }
  if constexpr (kRows > 1) {
    if (rows != 0) AddProductPanel<kRows / 2, kVectors>(k, x, tokens, decay, rows, state, prefetcher);
  }
}

void SubtractProduct(const Scratch& scratch, std::size_t key_dim, std::size_t rows, std::size_t vectors, float* x,
                     RowPrefetcher& prefetcher) {
  const float* state = scratch.state;
  for (; vectors >= kBlockVectors;
       vectors -= kBlockVectors, state += kBlockVectors * kLanes, x += kBlockVectors * kLanes) {
    SubtractProductPanel<kBlockRows, kBlockVectors>(scratch.w, state, key_dim, rows, x, prefetcher);
  }
  for (; vectors > 0; --vectors, state += kLanes, x += kLanes) {
    SubtractProductPanel<kBlockRows, 1>(scratch.w, state, key_dim, rows, x, prefetcher);
  }
}

void AddProduct(const Scratch& scratch, std::size_t key_dim, std::size_t tokens, std::size_t vectors, float decay,
                float* state, RowPrefetcher& prefetcher) {
  const float* x = scratch.x;
  for (; vectors >= kBlockVectors;
       vectors -= kBlockVectors, state += kBlockVectors * kLanes, x += kBlockVectors * kLanes) {
    AddProductPanel<kBlockRows, kBlockVectors>(scratch.k, x, tokens, decay, key_dim, state, prefetcher);
  }
  for (; vectors > 0; --vectors, state += kLanes, x += kLanes) {
    AddProductPanel<kBlockRows, 1>(scratch.k, x, tokens, decay, key_dim, state, prefetcher);
  }
}

void Exp2Range(const float* x, float* out, std::size_t count) {
  const std::size_t tail = count % kLanes;
  const std::size_t whole = count - tail;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    StoreFloats<DataType::kFloat32>(Exp2(LoadFloats<DataType::kFloat32>(x + i)), out + i);
  }
  if (tail != 0) {
    StoreFloats<DataType::kFloat32>(Exp2(LoadFloats<DataType::kFloat32>(x + whole, tail)), out + whole, tail);
  }
}

/// One item's view of its sequence's tensors.
class ItemRunner {
 public:
  ItemRunner(const RecurrenceItem& item, Scratch& scratch)
      : shape_(item.shape),
        sequence_(item.sequence),
        scratch_(scratch),
        head_(static_cast<std::size_t>(item.head)),
        first_column_(static_cast<std::size_t>(item.first_column)),
        columns_(static_cast<std::size_t>(item.columns)),
        heads_(static_cast<std::size_t>(item.shape.heads)),
        key_dim_(static_cast<std::size_t>(item.shape.key_dim)),
        value_dim_(static_cast<std::size_t>(item.shape.value_dim)) {}

  void Run() {
    LoadState(sequence_.initial_state);
    const auto length = static_cast<std::size_t>(sequence_.length);
    const auto chunk_size = static_cast<std::size_t>(shape_.chunk_size);
    const auto num_householder = static_cast<std::size_t>(shape_.num_householder);
    std::size_t chunk = 0;
    for (std::size_t row = 0; row < length; row += chunk_size, ++chunk) {
      if (chunk % num_householder == 0) StoreBoundary(chunk / num_householder);
      const std::size_t rows = std::min(chunk_size, length - row);
      RunChunk(row, rows, std::min(chunk_size, length - row - rows));
    }
    // A state that no token has changed stays untouched, whatever bits it holds.
    if (length != 0 || sequence_.slot.data != sequence_.initial_state.data) StoreState(sequence_.slot);
    StoreState(sequence_.final_state);
  }

 private:
  void LoadState(const ConstStateView& view) {
    if (view.data == nullptr) {
      const Floats zero = hn::Zero(FloatTag());
      for (std::size_t key = 0; key < key_dim_; ++key) {
        for (std::size_t column = 0; column < columns_; column += kLanes) {
          hn::Store(zero, FloatTag(), scratch_.state + key * kTileStride + column);
        }
      }
      return;
    }
    LoadRows(view.dtype, static_cast<const std::byte*>(view.data) + StateOffset(view), value_dim_, key_dim_, columns_,
             scratch_.state, kTileStride);
  }

  void StoreState(const StateView& view) const {
    if (view.data == nullptr) return;
    StoreRows(view.dtype, scratch_.state, kTileStride, key_dim_, columns_,
              static_cast<std::byte*>(view.data) + StateOffset(view), value_dim_);
  }

  /// In bytes, of this item's first element.
  std::size_t StateOffset(const ConstStateView& view) const {
    return (head_ * static_cast<std::size_t>(view.head_stride) + first_column_) *
           static_cast<std::size_t>(ByteSize(view.dtype));
  }

  void StoreBoundary(std::size_t boundary) {
    if (sequence_.all_boundaries.data != nullptr) {
      StateView view = sequence_.all_boundaries;
      view.head_stride = static_cast<std::int64_t>(key_dim_ * value_dim_);
      view.data = static_cast<std::byte*>(view.data) +
                  boundary * heads_ * key_dim_ * value_dim_ * static_cast<std::size_t>(ByteSize(view.dtype));
      StoreState(view);
    }
    for (; next_store_ < sequence_.boundaries.size() &&
           static_cast<std::size_t>(sequence_.boundaries[next_store_].boundary) == boundary;
         ++next_store_) {
      StoreState(sequence_.boundaries[next_store_].destination);
    }
  }

  /// Byte offset of this head's part of expanded token `row` in a tensor with `width` elements per head.
  std::size_t RowOffset(std::size_t row, std::size_t width) const {
    return (row * heads_ + head_) * width * static_cast<std::size_t>(ByteSize(shape_.input_dtype));
  }

  void LoadInput(const void* tensor, std::size_t row, std::size_t rows, float* to) const {
    LoadRows(shape_.input_dtype, static_cast<const std::byte*>(tensor) + RowOffset(row, key_dim_), heads_ * key_dim_,
             rows, key_dim_, to, kKeyStride);
  }

  /// `next_rows` is the length of the chunk after this one, 0 behind the last.
  void RunChunk(std::size_t row, std::size_t rows, std::size_t next_rows) {
    const std::size_t vectors = (columns_ + kLanes - 1) / kLanes;
    const std::size_t value_offset =
        RowOffset(row, value_dim_) + first_column_ * static_cast<std::size_t>(ByteSize(shape_.input_dtype));
    LoadInput(sequence_.w, row, rows, scratch_.w);
    LoadInput(sequence_.k, row, rows, scratch_.k);
    LoadRows(shape_.input_dtype, static_cast<const std::byte*>(sequence_.u) + value_offset, heads_ * value_dim_, rows,
             columns_, scratch_.x, kTileStride);
    RowPrefetcher prefetcher;
    const auto size = static_cast<std::size_t>(ByteSize(shape_.input_dtype));
    for (const void* tensor : {sequence_.w, sequence_.k}) {
      prefetcher.Add(static_cast<const std::byte*>(tensor) + RowOffset(row + rows, key_dim_), key_dim_ * size,
                     heads_ * key_dim_ * size, next_rows);
    }
    prefetcher.Add(static_cast<const std::byte*>(sequence_.u) + value_offset + rows * heads_ * value_dim_ * size,
                   columns_ * size, heads_ * value_dim_ * size, next_rows);
    SubtractProduct(scratch_, key_dim_, rows, vectors, scratch_.x, prefetcher);
    if (sequence_.v_new != nullptr) {
      StoreRows(shape_.input_dtype, scratch_.x, kTileStride, rows, columns_,
                static_cast<std::byte*>(sequence_.v_new) + value_offset, heads_ * value_dim_);
    }
    const float state_decay = sequence_.g == nullptr ? 1.0F : DecayRows(row, rows, vectors);
    AddProduct(scratch_, key_dim_, rows, vectors, state_decay, scratch_.state, prefetcher);
  }

  /// Multiplies the rows of x by their decay up to the end of the chunk; returns the decay of S.
  float DecayRows(std::size_t row, std::size_t rows, std::size_t vectors) {
    const float* g = sequence_.g + row * heads_ + head_;
    const float last = g[(rows - 1) * heads_];
    for (std::size_t i = 0; i < rows; ++i) scratch_.decay[i] = last - g[i * heads_];
    scratch_.decay[rows] = last;
    Exp2Range(scratch_.decay, scratch_.decay, rows + 1);
    const FloatTag d;
    for (std::size_t i = 0; i < rows; ++i) {
      const Floats factor = hn::Set(d, scratch_.decay[i]);
      float* x = scratch_.x + i * kTileStride;
      for (std::size_t j = 0; j < vectors; ++j)
        hn::Store(hn::Mul(hn::Load(d, x + j * kLanes), factor), d, x + j * kLanes);
    }
    return scratch_.decay[rows];
  }

  const RecurrenceShape& shape_;
  const Sequence& sequence_;
  Scratch& scratch_;
  const std::size_t head_;
  const std::size_t first_column_;
  const std::size_t columns_;
  const std::size_t heads_;
  const std::size_t key_dim_;
  const std::size_t value_dim_;
  std::size_t next_store_ = 0;  // in sequence_.boundaries
};

void RunItem(const RecurrenceItem& item, Scratch& scratch) { ItemRunner(item, scratch).Run(); }

template <DataType kFrom, DataType kTo>
void ConvertElements(const Stored<kFrom>* from, Stored<kTo>* to, std::size_t count) {
  const std::size_t tail = count % kLanes;
  const std::size_t whole = count - tail;
  for (std::size_t i = 0; i < whole; i += kLanes) StoreFloats<kTo>(LoadFloats<kFrom>(from + i), to + i);
  if (tail != 0) StoreFloats<kTo>(LoadFloats<kFrom>(from + whole, tail), to + whole, tail);
}

template <DataType kFrom>
void ConvertElementsFrom(const void* from, DataType to_dtype, void* to, std::size_t count) {
  const auto* source = static_cast<const Stored<kFrom>*>(from);
  switch (to_dtype) {
    case DataType::kFloat32:
      return ConvertElements<kFrom, DataType::kFloat32>(source, static_cast<float*>(to), count);
    case DataType::kBFloat16:
      return ConvertElements<kFrom, DataType::kBFloat16>(source, static_cast<std::uint16_t*>(to), count);
    case DataType::kFloat16:
      return ConvertElements<kFrom, DataType::kFloat16>(source, static_cast<std::uint16_t*>(to), count);
  }
}

void ConvertAny(const void* from, DataType from_dtype, void* to, DataType to_dtype, std::size_t count) {
  switch (from_dtype) {
    case DataType::kFloat32:
      return ConvertElementsFrom<DataType::kFloat32>(from, to_dtype, to, count);
    case DataType::kBFloat16:
      return ConvertElementsFrom<DataType::kBFloat16>(from, to_dtype, to, count);
    case DataType::kFloat16:
      return ConvertElementsFrom<DataType::kFloat16>(from, to_dtype, to, count);
  }
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace gdpcache::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdpcache::kernels::cpu {

HWY_EXPORT(RunItem);
HWY_EXPORT(ConvertAny);
HWY_EXPORT(Exp2Range);
HWY_EXPORT(TargetName);

void RunItem(const RecurrenceItem& item, Scratch& scratch) { HWY_DYNAMIC_DISPATCH(RunItem)(item, scratch); }

void ConvertElements(const void* from, DataType from_dtype, void* to, DataType to_dtype, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(ConvertAny)(from, from_dtype, to, to_dtype, static_cast<std::size_t>(count));
}

void Exp2Elements(const float* x, float* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Exp2Range)(x, out, static_cast<std::size_t>(count));
}

const char* SimdTargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace gdpcache::kernels::cpu
#endif  // HWY_ONCE
