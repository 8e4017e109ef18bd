#ifndef GDPCACHE_KERNELS_RECURRENCE_H_
#define GDPCACHE_KERNELS_RECURRENCE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/data_type.h"

/// One launch of the inter-chunk state recurrence of the Gated Delta Product, described without copying a tensor:
/// what all its sequences share (RecurrenceShape) and one descriptor per sequence (Sequence). Calls of the same
/// shape merge into one launch by concatenating their descriptors.
///
/// Per sequence and head, with BT = chunk_size, M = num_householder and rows = the chunk's expanded tokens:
///
///   S[K,V] = initial state in float32
///   for c = 0 .. ceil(length/BT)-1:
///     if c mod M == 0: boundary c/M = round(S, dtype of its destination)
///     x     = u[rows] - w[rows] . S              w . S with at least input_dtype precision of S, sums in >= float32
///     v_new = round(x, input_dtype)
///     if g: x *= 2^(g[last] - g[rows]); S *= 2^(g[last])
///     S    += k[rows]^T . x                      x with at least input_dtype precision, sums in >= float32
///   slot = round(S, slot.dtype); final_state = round(S, final_state.dtype)
///
/// Each result depends on its own sequence and head alone, and every sum has one fixed order: results are
/// bit-identical whatever else is in the launch, however many threads run it and wherever a sequence was cut at a
/// multiple of M*BT expanded tokens and resumed from a float32 state. So S is no more than float32 at a boundary, also
/// where a backend keeps more between two of them.
namespace gdpcache::kernels {

inline constexpr std::int64_t kMaxKeyDim = 256;
inline constexpr std::int64_t kMaxValueDim = 1024;

/// A [H, K, V] state in memory the backend can reach. Each head's [K, V] is dense and row-major.
struct ConstStateView {
  const void* data = nullptr;  // nullptr: no state
  DataType dtype = DataType::kFloat32;
  std::int64_t head_stride = 0;  // elements from one head to the next; K*V when dense, not read when H is 1
};

/// As ConstStateView, for a destination.
struct StateView {
  void* data = nullptr;
  DataType dtype = DataType::kFloat32;
  std::int64_t head_stride = 0;

  operator ConstStateView() const { return {data, dtype, head_stride}; }  // NOLINT(google-explicit-constructor)
};

/// How much precision S and x keep on their way into a product with bfloat16 or float16 inputs.
enum class Precision : std::uint8_t {
  kDefault,  // the backend's choice, at least input_dtype
  kHigh,     // at least twice the digits of input_dtype: relative error of states about 1e-5
};

/// What every sequence of a launch shares.
struct RecurrenceShape {
  std::int64_t heads = 0;                      // H, at least 1
  std::int64_t key_dim = 0;                    // K, 1 .. kMaxKeyDim
  std::int64_t value_dim = 0;                  // V, 1 .. kMaxValueDim
  std::int64_t num_householder = 1;            // M, at least 1
  std::int64_t chunk_size = 64;                // BT in expanded tokens: 16, 32, 64 or 128
  DataType input_dtype = DataType::kBFloat16;  // of k, w, u and v_new
  Precision precision = Precision::kDefault;   // results are bit-identical among launches of the same
};

/// A boundary state somebody asked for.
struct BoundaryStore {
  std::int64_t boundary = 0;  // the state after boundary * chunk_size tokens of this sequence
  StateView destination;
};

/// One sequence: `length` expanded tokens, rows dense ([length, H, K] for k and w, [length, H, V] for u and v_new,
/// [length, H] for g). All pointers are in memory the backend can reach and need only element alignment. Nothing
/// outside these rows is read or written. Outputs must not overlap each other or any input, except that `slot` may
/// be the very memory `initial_state` names (an update in place).
struct Sequence {
  /// Expanded tokens, a multiple of num_householder. 0: the initial state becomes the final one as by a StateCopy.
  std::int64_t length = 0;
  const void* k = nullptr;
  const void* w = nullptr;
  const void* u = nullptr;
  const float* g = nullptr;      // cumulative log2 decay within each chunk; nullptr means no decay
  void* v_new = nullptr;         // nullptr: not wanted
  ConstStateView initial_state;  // no data: start from zero
  StateView slot;                // where the final state goes; no data: stored nowhere
  StateView final_state;         // a second destination for the final state; no data: not wanted
  /// All ceil(length / M / BT) boundaries as consecutive dense [H, K, V] states of `all_boundaries.dtype`, whatever its
  /// head_stride; no data: none.
  StateView all_boundaries;
  /// Single boundaries, ascending; several entries may name the same one.
  absl::Span<const BoundaryStore> boundaries;
};

/// One [H, K, V] state to copy. Source and destination do not overlap, except that they may be the same view, which
/// changes nothing. Equal dtypes copy bit for bit, otherwise values round to nearest even.
struct StateCopy {
  StateView destination;
  ConstStateView source;  // no data: zeros
};

/// Checks everything that does not need to touch the tensors: ranges of the shape, lengths, null pointers, head
/// strides, boundary numbers. INVALID_ARGUMENT names the field and both values.
absl::Status ValidateRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences);

/// The same for copies of states; only heads, key_dim and value_dim of `shape` matter.
absl::Status ValidateStateCopies(const RecurrenceShape& shape, absl::Span<const StateCopy> copies);

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_RECURRENCE_H_
