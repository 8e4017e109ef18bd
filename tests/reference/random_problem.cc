#include "tests/reference/random_problem.h"

#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "tests/reference/numbers.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;

/// The standard's distributions differ between libraries; these do not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// In [0, 1).
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  /// In [low, high].
  std::int64_t Integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

  double Normal() {
    constexpr double kTwoPi = 6.283185307179586;
    return std::sqrt(-2 * std::log(1 - Uniform())) * std::cos(kTwoPi * Uniform());
  }

  template <class T>
  const T& Choice(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(Integer(0, static_cast<std::int64_t>(values.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

HostTensor RandomTensor(Random& random, DataType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor = ZeroTensor(dtype, std::move(shape));
  std::vector<double> values(static_cast<std::size_t>(tensor.elements()));
  for (double& value : values) value = random.Normal();
  return Encode(dtype, tensor.shape, values);
}

/// Distinct slots in random order.
std::vector<std::int64_t> RandomSlots(Random& random, std::int64_t count, std::int64_t slots) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(slots));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  for (std::size_t i = all.size(); i > 1; --i) {
    std::swap(all[i - 1], all[static_cast<std::size_t>(random.Integer(0, static_cast<std::int64_t>(i) - 1))]);
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

}  // namespace

Problem RandomProblem(const ProblemSpec& spec, std::uint64_t seed) {
  Random random(seed);
  Problem problem;
  problem.shape = spec.shape;
  problem.initial = spec.initial;
  problem.states_dtype = spec.states_dtype;
  problem.save_new_value = spec.save_new_value;
  problem.output_final_state = spec.output_final_state;
  problem.cu_seqlens = {0};
  for (const std::int64_t length : spec.lengths) {
    problem.cu_seqlens.push_back(problem.cu_seqlens.back() + length * spec.shape.num_householder);
  }
  const std::int64_t tokens = problem.tokens();
  const std::int64_t heads = spec.shape.heads;
  const std::int64_t key_dim = spec.shape.key_dim;
  const std::int64_t value_dim = spec.shape.value_dim;

  std::vector<double> k;
  std::vector<double> w;
  std::vector<double> u;
  for (std::int64_t row = 0; row < tokens * heads; ++row) {
    std::vector<double> key(static_cast<std::size_t>(key_dim));
    for (double& element : key) element = random.Normal();
    const double norm = std::sqrt(std::inner_product(key.begin(), key.end(), key.begin(), 1e-9));
    const double beta = 0.1 + 0.8 * random.Uniform();
    for (const double element : key) {
      k.push_back(element / norm);
      w.push_back(0.3 * beta * (element / norm + 0.1 * random.Normal() / std::sqrt(static_cast<double>(key_dim))));
    }
    for (std::int64_t v = 0; v < value_dim; ++v) u.push_back(beta * random.Normal());
  }
  problem.k = Encode(spec.shape.input_dtype, {tokens, heads, key_dim}, k);
  problem.w = Encode(spec.shape.input_dtype, {tokens, heads, key_dim}, w);
  problem.u = Encode(spec.shape.input_dtype, {tokens, heads, value_dim}, u);

  if (spec.decay) {
    std::vector<double> g(static_cast<std::size_t>(tokens * heads));
    for (std::size_t n = 0; n + 1 < problem.cu_seqlens.size(); ++n) {
      for (std::int64_t row = problem.cu_seqlens[n]; row < problem.cu_seqlens[n + 1]; ++row) {
        const bool chunk_start = (row - problem.cu_seqlens[n]) % spec.shape.chunk_size == 0;
        for (std::int64_t head = 0; head < heads; ++head) {
          const double before = chunk_start ? 0.0 : g[static_cast<std::size_t>((row - 1) * heads + head)];
          g[static_cast<std::size_t>(row * heads + head)] = before - 0.2 * random.Uniform() * random.Uniform();
        }
      }
    }
    problem.g = Encode(DataType::kFloat32, {tokens, heads}, g);
  }

  const std::int64_t sequences = problem.sequences();
  problem.state_indices = spec.state_indices;
  std::int64_t slots = sequences + spec.spare_slots;
  if (problem.state_indices.empty()) problem.state_indices = RandomSlots(random, sequences, slots);
  problem.state = RandomTensor(random, spec.state_dtype, {slots, heads, key_dim, value_dim});
  if (spec.initial == InitialState::kTensor) {
    problem.initial_state = RandomTensor(random, DataType::kFloat32, {sequences, heads, key_dim, value_dim});
  }
  return problem;
}

Problem RandomSmallProblem(std::uint64_t seed) {
  Random random(seed);
  const std::vector<DataType> dtypes = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16};
  ProblemSpec spec;
  spec.shape.heads = random.Integer(1, 3);
  spec.shape.key_dim = random.Choice<std::int64_t>({1, 5, 8, 16, 31, 32, 33, 64, random.Integer(1, 80)});
  spec.shape.value_dim = random.Choice<std::int64_t>({1, 7, 16, 33, 40, 64, 65, random.Integer(1, 140)});
  spec.shape.num_householder = random.Integer(1, 5);
  spec.shape.chunk_size = random.Choice<std::int64_t>({16, 32, 64, 128});
  spec.shape.input_dtype = random.Choice(dtypes);
  spec.decay = random.Integer(0, 4) != 0;
  spec.initial = random.Choice<InitialState>({InitialState::kSlot, InitialState::kZero, InitialState::kTensor});
  spec.state_dtype = random.Choice(dtypes);
  spec.states_dtype = random.Choice(dtypes);
  spec.save_new_value = random.Integer(0, 3) != 0;
  spec.output_final_state = random.Integer(0, 1) != 0;
  spec.spare_slots = random.Integer(0, 2);
  const std::int64_t sequences = random.Integer(1, 4);
  for (std::int64_t n = 0; n < sequences; ++n) {
    const std::int64_t longest = 2 * spec.shape.chunk_size / spec.shape.num_householder + 3;
    spec.lengths.push_back(random.Integer(0, 5) == 0 ? 0 : random.Integer(1, longest));
  }
  spec.state_indices = RandomSlots(random, sequences, sequences + spec.spare_slots);
  for (std::int64_t& slot : spec.state_indices) {
    if (random.Integer(0, 4) == 0) slot = -1;
  }
  return RandomProblem(spec, seed ^ 0x9E3779B97F4A7C15U);
}

}  // namespace gdpcache::testing
