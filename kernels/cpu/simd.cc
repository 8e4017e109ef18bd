#include "kernels/cpu/simd.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

// The x86 targets left out add nothing that the kernels use; the others have vectors that cannot be array elements.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/products-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdpcache::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using namespace gdpcache::kernels::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): one namespace per target

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

/// Sequences of up to this many expanded tokens do little but pass over their states.
constexpr std::int64_t kMaxShortRows = 4;

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
    if (IsShort()) return RunShort();
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

  std::size_t vectors() const { return (columns_ + kLanes - 1) / kLanes; }
  std::size_t input_bytes() const { return static_cast<std::size_t>(ByteSize(shape_.input_dtype)); }

  /// Byte offset of this head's part of expanded token `row` in k and w.
  std::size_t KeyOffset(std::size_t row) const { return (row * heads_ + head_) * key_dim_ * input_bytes(); }

  /// The same in u and v_new, from this item's first column.
  std::size_t ValueOffset(std::size_t row) const {
    return ((row * heads_ + head_) * value_dim_ + first_column_) * input_bytes();
  }

  void LoadInputs(std::size_t row, std::size_t rows) {
    const auto load = [&](const void* tensor, std::size_t offset, std::size_t width, std::size_t columns, float* to,
                          std::size_t to_stride) HWY_ATTR {
      LoadRows(shape_.input_dtype, static_cast<const std::byte*>(tensor) + offset, heads_ * width, rows, columns, to,
               to_stride);
    };
    load(sequence_.w, KeyOffset(row), key_dim_, key_dim_, scratch_.w, kKeyStride);
    load(sequence_.k, KeyOffset(row), key_dim_, key_dim_, scratch_.k, kKeyStride);
    load(sequence_.u, ValueOffset(row), value_dim_, columns_, scratch_.x, kTileStride);
  }

  /// Stores x as v_new, then multiplies its rows by their decay up to the end of the chunk; returns the decay of S.
  float StoreAndDecayRows(std::size_t row, std::size_t rows) {
    if (sequence_.v_new != nullptr) {
      StoreRows(shape_.input_dtype, scratch_.x, kTileStride, rows, columns_,
                static_cast<std::byte*>(sequence_.v_new) + ValueOffset(row), heads_ * value_dim_);
    }
    if (sequence_.g == nullptr) return 1.0F;
    const float* g = sequence_.g + row * heads_ + head_;
    const float last = g[(rows - 1) * heads_];
    for (std::size_t i = 0; i < rows; ++i) scratch_.decay[i] = last - g[i * heads_];
    scratch_.decay[rows] = last;
    Exp2Range(scratch_.decay, scratch_.decay, rows + 1);
    const FloatTag d;
    for (std::size_t i = 0; i < rows; ++i) {
      const Floats factor = hn::Set(d, scratch_.decay[i]);
      float* const x = scratch_.x + i * kTileStride;
      for (std::size_t j = 0; j < vectors() * kLanes; j += kLanes) {
        hn::Store(hn::Mul(hn::Load(d, x + j), factor), d, x + j);
      }
    }
    return scratch_.decay[rows];
  }

  /// `next_rows` is the length of the chunk after this one, 0 behind the last.
  void RunChunk(std::size_t row, std::size_t rows, std::size_t next_rows) {
    LoadInputs(row, rows);
    RowPrefetcher prefetcher;
    const std::size_t key_bytes = key_dim_ * input_bytes();
    const std::size_t next = row + rows;
    prefetcher.Add(static_cast<const std::byte*>(sequence_.w) + KeyOffset(next), key_bytes, heads_ * key_bytes,
                   next_rows);
    prefetcher.Add(static_cast<const std::byte*>(sequence_.k) + KeyOffset(next), key_bytes, heads_ * key_bytes,
                   next_rows);
    prefetcher.Add(static_cast<const std::byte*>(sequence_.u) + ValueOffset(next), columns_ * input_bytes(),
                   heads_ * value_dim_ * input_bytes(), next_rows);
    SubtractProduct(scratch_, key_dim_, rows, vectors(), scratch_.x, prefetcher);
    const float state_decay = StoreAndDecayRows(row, rows);
    AddProduct(scratch_, key_dim_, rows, vectors(), state_decay, scratch_.state, prefetcher);
  }

  /// Whether the state can go from where it is to where it belongs without a copy between.
  bool IsShort() const {
    const bool same_dtype =
        sequence_.initial_state.data == nullptr || sequence_.initial_state.dtype == sequence_.slot.dtype;
    return sequence_.length > 0 && sequence_.length <= kMaxShortRows && columns_ % kLanes == 0 &&
           sequence_.slot.data != nullptr && same_dtype && sequence_.final_state.data == nullptr;
  }

  void RunShort() {
    if (sequence_.all_boundaries.data != nullptr || !sequence_.boundaries.empty()) {
      LoadState(sequence_.initial_state);
      StoreBoundary(0);
    }
    switch (sequence_.slot.dtype) {
      case DataType::kFloat32:
        return RunShort<DataType::kFloat32>();
      case DataType::kBFloat16:
        return RunShort<DataType::kBFloat16>();
      case DataType::kFloat16:
        return RunShort<DataType::kFloat16>();
    }
  }

  template <DataType kType>
  void RunShort() {
    switch (sequence_.length) {
      case 1:
        return RunShort<kType, 1>();
      case 2:
        return RunShort<kType, 2>();
      case 3:
        return RunShort<kType, 3>();
      default:
        return RunShort<kType, 4>();
    }
  }

  template <DataType kType, std::size_t kRows>
  void RunShort() {
    static_assert(kRows <= kMaxShortRows);
    alignas(64) static constexpr Stored<kType> kZeros[kMaxTileColumns] = {};
    const auto typed = [&](const ConstStateView& view) HWY_ATTR {
      return reinterpret_cast<const Stored<kType>*>(static_cast<const std::byte*>(view.data) + StateOffset(view));
    };
    StatePass<kType> pass{.from = kZeros, .from_stride = 0, .next = nullptr, .to = nullptr, .to_stride = value_dim_};
    if (sequence_.initial_state.data != nullptr) {
      pass.from = typed(sequence_.initial_state);
      pass.from_stride = value_dim_;
      if (head_ + 1 < heads_) pass.next = pass.from + sequence_.initial_state.head_stride;
    }
    pass.to = const_cast<Stored<kType>*>(typed(sequence_.slot));
    LoadInputs(0, kRows);
    SubtractStoredProduct<kType, kRows>(scratch_.w, pass.from, pass.from_stride, key_dim_, vectors(), scratch_.x);
    const float state_decay = StoreAndDecayRows(0, kRows);
    AddStoredProduct<kType, kRows>(scratch_.k, scratch_.x, state_decay, key_dim_, vectors(), pass);
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
