#include "client/command/exact_recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace gdpcache::command {
namespace {

double FromBFloat16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

double FromFloat16(std::uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

/// The operands in float64.
struct Operands {
  std::vector<double> k;
  std::vector<double> w;
  std::vector<double> u;
  std::vector<double> g;  // empty: no decay
};

/// Rows of one head of one sequence, and the state as it advances.
class Head {
 public:
  Head(const RecordedBatch& batch, const Operands& operands, std::int64_t head, double* state, double* v_new)
      : batch_(batch), operands_(operands), head_(head), state_(state), v_new_(v_new) {}

  /// One chunk: rows [begin, end) of the expanded stream.
  void Advance(std::int64_t begin, std::int64_t end) const {
    const std::int64_t keys = batch_.key_dim;
    const std::int64_t values = batch_.value_dim;
    const bool decays = !operands_.g.empty();
    const double last_decay = decays ? operands_.g[Row(end - 1)] : 0.0;

    // x = u - w S
    std::vector<double> x(static_cast<std::size_t>((end - begin) * values));
    for (std::int64_t t = begin; t < end; ++t) {
      double* row = x.data() + (t - begin) * values;
      std::copy_n(operands_.u.data() + Row(t) * values, values, row);
      for (std::int64_t i = 0; i < keys; ++i) {
        const double w = operands_.w[Row(t) * keys + i];
        for (std::int64_t j = 0; j < values; ++j) row[j] -= w * state_[i * values + j];
      }
      std::copy_n(row, values, v_new_ + Row(t) * values);
      if (decays) {
        const double factor = std::exp2(last_decay - operands_.g[Row(t)]);
        for (std::int64_t j = 0; j < values; ++j) row[j] *= factor;
      }
    }

    // S = 2^(g of the last row) S + k^T x
    if (decays) {
      const double factor = std::exp2(last_decay);
      for (std::int64_t i = 0; i < keys * values; ++i) state_[i] *= factor;
    }
    for (std::int64_t t = begin; t < end; ++t) {
      const double* row = x.data() + (t - begin) * values;
      for (std::int64_t i = 0; i < keys; ++i) {
        const double k = operands_.k[Row(t) * keys + i];
        for (std::int64_t j = 0; j < values; ++j) state_[i * values + j] += k * row[j];
      }
    }
  }

 private:
  std::int64_t Row(std::int64_t token) const { return token * batch_.heads + head_; }

  const RecordedBatch& batch_;
  const Operands& operands_;
  std::int64_t head_;
  double* state_;
  double* v_new_;
};

/// [N, H, K, V] states that the sequences start from.
std::vector<double> InitialStates(const RecordedBatch& batch, const std::vector<double>& slots) {
  if (batch.initial_state) return ToDoubles(*batch.initial_state);
  const std::int64_t size = batch.heads * batch.key_dim * batch.value_dim;
  std::vector<double> states(static_cast<std::size_t>(batch.sequences * size));
  if (batch.initial_state_source == InitialState::kSlot) {
    for (std::int64_t n = 0; n < batch.sequences; ++n) {
      const std::int64_t slot = batch.state_indices[static_cast<std::size_t>(n)];
      if (slot >= 0) std::copy_n(slots.data() + slot * size, size, states.data() + n * size);
    }
  }
  return states;
}

}  // namespace

std::vector<double> ToDoubles(const ConstTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t dimension : tensor.shape) count *= dimension;
  std::vector<double> values(static_cast<std::size_t>(count));
  const auto* bytes = static_cast<const std::byte*>(tensor.data);
  for (std::int64_t i = 0; i < count; ++i) {
    if (tensor.dtype == DataType::kFloat32) {
      float value = 0;
      std::memcpy(&value, bytes + i * 4, 4);
      values[static_cast<std::size_t>(i)] = value;
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes + i * 2, 2);
      values[static_cast<std::size_t>(i)] =
          tensor.dtype == DataType::kBFloat16 ? FromBFloat16(bits) : FromFloat16(bits);
    }
  }
  return values;
}

ExactResults ComputeExactly(const RecordedBatch& batch) {
  const Operands operands = {ToDoubles(batch.k), ToDoubles(batch.w), ToDoubles(batch.u),
                             batch.g ? ToDoubles(*batch.g) : std::vector<double>()};
  const std::int64_t head_size = batch.key_dim * batch.value_dim;
  const std::int64_t state_size = batch.heads * head_size;

  ExactResults results;
  if (batch.state_before) results.state = ToDoubles(*batch.state_before);
  results.final_state = InitialStates(batch, results.state);
  results.h.resize(static_cast<std::size_t>(batch.boundaries * state_size));
  results.v_new.resize(operands.u.size());

  std::int64_t boundary = 0;  // of all sequences before
  for (std::int64_t n = 0; n < batch.sequences; ++n) {
    const std::int64_t begin = batch.begins[static_cast<std::size_t>(n)];
    const std::int64_t end = batch.begins[static_cast<std::size_t>(n) + 1];
    double* const states = results.final_state.data() + n * state_size;
    for (std::int64_t row = begin, chunk = 0; row < end; row += batch.chunk_size, ++chunk) {
      if (chunk % batch.num_householder == 0) {
        std::copy_n(states, state_size, results.h.data() + boundary * state_size);
        ++boundary;
      }
      for (std::int64_t head = 0; head < batch.heads; ++head) {
        Head(batch, operands, head, states + head * head_size, results.v_new.data())
            .Advance(row, std::min(row + batch.chunk_size, end));
      }
    }
    const std::int64_t slot = batch.state_indices.empty() ? -1 : batch.state_indices[static_cast<std::size_t>(n)];
    if (slot >= 0) std::copy_n(states, state_size, results.state.data() + slot * state_size);
  }
  return results;
}

}  // namespace gdpcache::command
