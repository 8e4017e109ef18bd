// The two products of the recurrence, on S in working memory and on S where it is stored. Compiled once per SIMD
// target. Every element is one chain of fused multiply-adds in ascending order, however the blocks are cut.

#include <cstddef>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector-inl.h"

// The include guard of a file that is compiled once per target.
#if defined(GDPCACHE_KERNELS_CPU_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDPCACHE_KERNELS_CPU_PRODUCTS_INL_H_
#undef GDPCACHE_KERNELS_CPU_PRODUCTS_INL_H_
#else
#define GDPCACHE_KERNELS_CPU_PRODUCTS_INL_H_
#endif

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
constexpr std::size_t kBlockRows = 6;
constexpr std::size_t kBlockVectors = 2;
#endif

/// x -= w . S for kRows rows of w and x and kVectors vectors of columns, K ascending. S is stored as kType, its rows
/// `state_stride` elements apart.
template <DataType kType, std::size_t kRows, std::size_t kVectors>
HWY_INLINE void SubtractProductBlock(const float* w, const Stored<kType>* state, std::size_t state_stride,
                                     std::size_t key_dim, float* x) {
  const FloatTag d;
  Floats sums[kRows][kVectors];
  GDPCACHE_UNROLL
  for (std::size_t i = 0; i < kRows; ++i) {
    GDPCACHE_UNROLL
    for (std::size_t j = 0; j < kVectors; ++j) sums[i][j] = hn::Load(d, x + i * kTileStride + j * kLanes);
  }
  for (std::size_t key = 0; key < key_dim; ++key, ++w, state += state_stride) {
    Floats row[kVectors];
    GDPCACHE_UNROLL
    for (std::size_t j = 0; j < kVectors; ++j) row[j] = LoadFloats<kType>(state + j * kLanes);
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
    SubtractProductBlock<DataType::kFloat32, kRows, kVectors>(w, state, kTileStride, key_dim, x);
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

/// x -= w . S for kRows rows, all columns, with S read where it is stored.
template <DataType kType, std::size_t kRows, std::size_t kVectors = kBlockVectors>
void SubtractStoredProduct(const float* w, const Stored<kType>* state, std::size_t state_stride, std::size_t key_dim,
                           std::size_t vectors, float* x) {
  for (; vectors >= kVectors; vectors -= kVectors, state += kVectors * kLanes, x += kVectors * kLanes) {
    SubtractProductBlock<kType, kRows, kVectors>(w, state, state_stride, key_dim, x);
  }
  if constexpr (kVectors > 1) {
    if (vectors != 0) SubtractStoredProduct<kType, kRows, 1>(w, state, state_stride, key_dim, vectors, x);
  }
}

/// Where a pass over stored states reads and writes; the two may be the same memory.
template <DataType kType>
struct StatePass {
  const Stored<kType>* from;
  std::size_t from_stride;    // elements from one row to the next, also 0
  const Stored<kType>* next;  // where the next pass will probably read, fetched on the way; or nullptr
  Stored<kType>* to;
  std::size_t to_stride;
};

/// S = S * decay + k^T . x for kRows tokens and all columns, from stored to stored, tokens ascending.
template <DataType kType, std::size_t kRows, std::size_t kVectors = kBlockVectors>
void AddStoredProduct(const float* k, const float* x, float decay, std::size_t key_dim, std::size_t vectors,
                      StatePass<kType> pass) {
  const FloatTag d;
  const Floats decay_vector = hn::Set(d, decay);
  for (; vectors >= kVectors; vectors -= kVectors, x += kVectors * kLanes) {
    Floats rows[kRows][kVectors];
    GDPCACHE_UNROLL
    for (std::size_t i = 0; i < kRows; ++i) {
      GDPCACHE_UNROLL
      for (std::size_t j = 0; j < kVectors; ++j) rows[i][j] = hn::Load(d, x + i * kTileStride + j * kLanes);
    }
    for (std::size_t key = 0; key < key_dim; ++key) {
      const Stored<kType>* const from = pass.from + key * pass.from_stride;
      Stored<kType>* const to = pass.to + key * pass.to_stride;
      GDPCACHE_UNROLL
      for (std::size_t j = 0; j < kVectors; ++j) {
        Floats sum = hn::Mul(LoadFloats<kType>(from + j * kLanes), decay_vector);
        GDPCACHE_UNROLL
        for (std::size_t i = 0; i < kRows; ++i) sum = Fma(hn::Set(d, k[i * kKeyStride + key]), rows[i][j], sum);
        StoreFloats<kType>(sum, to + j * kLanes);
        if (pass.next != nullptr) hwy::Prefetch(pass.next + key * pass.from_stride + j * kLanes);
      }
    }
    pass.from += kVectors * kLanes;
    pass.to += kVectors * kLanes;
    if (pass.next != nullptr) pass.next += kVectors * kLanes;
  }
  if constexpr (kVectors > 1) {
    if (vectors != 0) AddStoredProduct<kType, kRows, 1>(k, x, decay, key_dim, vectors, pass);
  }
}

}  // namespace gdpcache::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
