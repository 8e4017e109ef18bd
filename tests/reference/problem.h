#ifndef GDPCACHE_TESTS_REFERENCE_PROBLEM_H_
#define GDPCACHE_TESTS_REFERENCE_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/data_type.h"
#include "kernels/recurrence.h"

namespace gdpcache::testing {

/// A dense row-major tensor in ordinary memory.
struct HostTensor {
  kernels::DataType dtype = kernels::DataType::kFloat32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  // empty: the tensor is absent

  bool present() const { return !shape.empty(); }
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (const std::int64_t dimension : shape) product *= dimension;
    return product;
  }
};

/// An absent tensor's opposite: all zeros.
inline HostTensor ZeroTensor(kernels::DataType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.resize(static_cast<std::size_t>(tensor.elements() * ByteSize(dtype)));
  return tensor;
}

enum class InitialState { kSlot, kZero, kTensor };

/// One call of the recurrence: a packed batch of N sequences and a state cache of S slots.
struct Problem {
  kernels::RecurrenceShape shape;
  std::vector<std::int64_t> cu_seqlens;     // [N+1], on the expanded stream
  HostTensor k, w;                          // [T, H, K] of shape.input_dtype
  HostTensor u;                             // [T, H, V] of shape.input_dtype
  HostTensor g;                             // [T, H] float32, may be absent
  HostTensor state;                         // the cache before the call, [S, H, K, V]; may be absent
  std::vector<std::int64_t> state_indices;  // [N], -1: none; empty without a cache
  InitialState initial = InitialState::kSlot;
  HostTensor initial_state;  // [N, H, K, V] float32 where initial is kTensor
  kernels::DataType states_dtype = kernels::DataType::kFloat32;
  bool save_new_value = true;
  bool output_final_state = false;

  std::int64_t sequences() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
  std::int64_t tokens() const { return cu_seqlens.back(); }
  std::int64_t state_elements() const { return shape.heads * shape.key_dim * shape.value_dim; }

  /// Boundaries that sequence n emits: ceil(length / M / BT).
  std::int64_t BoundaryCount(std::int64_t n) const {
    const auto i = static_cast<std::size_t>(n);
    const std::int64_t tokens = (cu_seqlens[i + 1] - cu_seqlens[i]) / shape.num_householder;
    return (tokens + shape.chunk_size - 1) / shape.chunk_size;
  }
};

/// What a call gives back; absent where the problem does not ask for it.
struct Outputs {
  HostTensor h;            // [NT, H, K, V] of states_dtype
  HostTensor v_new;        // [T, H, V] of the input dtype
  HostTensor state;        // [S, H, K, V], the cache after the call
  HostTensor final_state;  // [N, H, K, V] float32
};

}  // namespace gdpcache::testing

#endif  // GDPCACHE_TESTS_REFERENCE_PROBLEM_H_
