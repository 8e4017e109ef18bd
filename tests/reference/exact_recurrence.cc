#include "tests/reference/exact_recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "tests/reference/numbers.h"

namespace gdpcache::testing {

ExactOutputs ExactRecurrence(const Problem& problem) {
  const auto heads = static_cast<std::size_t>(problem.shape.heads);
  const auto key_dim = static_cast<std::size_t>(problem.shape.key_dim);
  const auto value_dim = static_cast<std::size_t>(problem.shape.value_dim);
  const auto num_householder = static_cast<std::size_t>(problem.shape.num_householder);
  const auto chunk_size = static_cast<std::size_t>(problem.shape.chunk_size);
  const auto sequences = static_cast<std::size_t>(problem.sequences());
  const std::size_t head_elements = key_dim * value_dim;
  const std::size_t state_elements = heads * head_elements;

  const std::vector<double> k = Decode(problem.k);
  const std::vector<double> w = Decode(problem.w);
  const std::vector<double> u = Decode(problem.u);
  const std::vector<double> g = Decode(problem.g);
  const std::vector<double> slots = Decode(problem.state);
  const std::vector<double> initial = Decode(problem.initial_state);

  std::size_t boundaries = 0;
  for (std::size_t n = 0; n < sequences; ++n) {
    boundaries += static_cast<std::size_t>(problem.BoundaryCount(static_cast<std::int64_t>(n)));
  }
  ExactOutputs out;
  out.h.resize(boundaries * state_elements);
  out.state = slots;
  if (problem.save_new_value) out.v_new.resize(u.size());
  if (problem.output_final_state) out.final_state.resize(sequences * state_elements);

  std::size_t first_boundary = 0;
  for (std::size_t n = 0; n < sequences; ++n) {
    const auto begin = static_cast<std::size_t>(problem.cu_seqlens[n]);
    const auto end = static_cast<std::size_t>(problem.cu_seqlens[n + 1]);
    const std::int64_t slot = problem.state_indices.empty() ? -1 : problem.state_indices[n];
    for (std::size_t head = 0; head < heads; ++head) {
      std::vector<double> s(head_elements, 0.0);
      const double* from = nullptr;
      if (problem.initial == InitialState::kTensor) from = &initial[(n * heads + head) * head_elements];
      if (problem.initial == InitialState::kSlot && slot >= 0) {
        from = &slots[(static_cast<std::size_t>(slot) * heads + head) * head_elements];
      }
      if (from != nullptr) std::copy(from, from + head_elements, s.begin());

      std::size_t chunk = 0;
      for (std::size_t first = begin; first < end; first += chunk_size, ++chunk) {
        const std::size_t last = std::min(first + chunk_size, end) - 1;
        if (chunk % num_householder == 0) {
          const std::size_t boundary = first_boundary + chunk / num_householder;
          std::copy(s.begin(), s.end(),
                    out.h.begin() + static_cast<std::ptrdiff_t>((boundary * heads + head) * head_elements));
        }
        std::vector<double> next = s;
        const double last_g = g.empty() ? 0.0 : g[last * heads + head];
        for (double& element : next) element *= std::exp2(last_g);
        for (std::size_t row = first; row <= last; ++row) {
          const double decay = g.empty() ? 1.0 : std::exp2(last_g - g[row * heads + head]);
          for (std::size_t v = 0; v < value_dim; ++v) {
            double x = u[(row * heads + head) * value_dim + v];
            for (std::size_t key = 0; key < key_dim; ++key) {
              x -= w[(row * heads + head) * key_dim + key] * s[key * value_dim + v];
            }
            if (problem.save_new_value) out.v_new[(row * heads + head) * value_dim + v] = x;
            for (std::size_t key = 0; key < key_dim; ++key) {
              next[key * value_dim + v] += k[(row * heads + head) * key_dim + key] * (x * decay);
            }
          }
        }
        s = next;
      }
      if (slot >= 0) {
        std::copy(s.begin(), s.end(),
                  out.state.begin() +
                      static_cast<std::ptrdiff_t>((static_cast<std::size_t>(slot) * heads + head) * head_elements));
      }
      if (problem.output_final_state) {
        std::copy(s.begin(), s.end(),
                  out.final_state.begin() + static_cast<std::ptrdiff_t>((n * heads + head) * head_elements));
      }
    }
    first_boundary += static_cast<std::size_t>(problem.BoundaryCount(static_cast<std::int64_t>(n)));
  }
  return out;
}

}  // namespace gdpcache::testing
