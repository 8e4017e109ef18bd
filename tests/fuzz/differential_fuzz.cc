// A batch drawn from the input: the CPU backend against the recurrence in float64, the batch against each of its
// sequences alone (what merging calls relies on), and each sequence whole against the same in two calls.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

#include "kernels/backend.h"
#include "tests/fuzz/differential.h"
#include "tests/reference/exact_recurrence.h"
#include "tests/reference/numbers.h"
#include "tests/reference/problem_edit.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/kernels/problem_runner.h"

namespace gdpcache::testing {
namespace {

using differential::Bytes;
using differential::Require;
using kernels::DataType;

ProblemSpec Draw(Bytes& bytes) {
  const std::vector<DataType> dtypes = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16};
  ProblemSpec spec;
  spec.shape.heads = 1 + bytes.Below(3);
  spec.shape.key_dim = 1 + bytes.Below(72);
  spec.shape.value_dim = 1 + bytes.Below(96);
  spec.shape.num_householder = 1 + bytes.Below(4);
  spec.shape.chunk_size = bytes.Of<std::int64_t>({16, 32, 64, 128});
  spec.shape.input_dtype = bytes.Of(dtypes);
  spec.decay = bytes.Below(4) != 0;
  spec.initial = bytes.Of<InitialState>({InitialState::kSlot, InitialState::kZero, InitialState::kTensor});
  spec.states_dtype = DataType::kFloat32;
  spec.spare_slots = 1;
  const std::int64_t sequences = 1 + bytes.Below(4);
  for (std::int64_t n = 0; n < sequences; ++n) {
    spec.lengths.push_back(bytes.Below(3 * spec.shape.chunk_size / spec.shape.num_householder + 2));
    spec.state_indices.push_back(bytes.Below(5) == 0 ? -1 : n);
  }
  return spec;
}

double RootMeanSquare(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0) /
                   static_cast<double>(std::max<std::size_t>(values.size(), 1)));
}

/// How much what is wrong with a state before a chunk can grow until a later boundary, at least 1. The recurrence is
/// linear: it is what becomes of a state of ones where no values come in. With a key of few numbers, which all rows of
/// a chunk share, that is twenty times as much after each chunk.
double GrowthOfErrors(const Problem& batch) {
  double growth = 1;
  for (std::int64_t n = 0; n < batch.sequences(); ++n) {
    const std::int64_t rows =
        batch.cu_seqlens[static_cast<std::size_t>(n) + 1] - batch.cu_seqlens[static_cast<std::size_t>(n)];
    for (std::int64_t first = 0; first < rows; first += batch.shape.chunk_size) {
      Problem rest = PartOfSequence(batch, n, first, rows - first);
      rest.u = ZeroTensor(rest.u.dtype, rest.u.shape);
      rest.initial = InitialState::kTensor;
      const std::vector<double> ones(static_cast<std::size_t>(rest.state_elements()), 1.0);
      rest.initial_state =
          Encode(DataType::kFloat32, {1, rest.shape.heads, rest.shape.key_dim, rest.shape.value_dim}, ones);
      growth = std::max(growth, RootMeanSquare(ExactRecurrence(rest).final_state));
    }
  }
  return growth;
}

/// The difference is within `limit` of the whole, or within float32's rounding of the sums, whose terms are of order 1,
/// where they cancel: a state of one number can come to next to nothing. Either as often as errors grow.
void RequireClose(const HostTensor& actual, const std::vector<double>& exact, double limit, double growth,
                  const char* what) {
  constexpr double kRoundingOfSums = 2e-6;
  const std::vector<double> values = Decode(actual);
  Require(values.size() == exact.size(), what);
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - exact[i]) * (values[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  const double allowed =
      growth * (limit * std::sqrt(norm) + kRoundingOfSums * std::sqrt(static_cast<double>(exact.size())));
  const bool close = std::sqrt(difference) <= allowed;
  if (!close) {
    std::fprintf(stderr, "the difference is %g of %g, where errors grow to %g times\n", std::sqrt(difference),
                 std::sqrt(norm), growth);
  }
  Require(close, what);
}

void CheckSplit(kernels::Backend& backend, const Problem& batch, const Results& together, std::int64_t n,
                std::int64_t tokens) {
  const std::int64_t row = batch.cu_seqlens[static_cast<std::size_t>(n)];
  const std::int64_t rows = batch.cu_seqlens[static_cast<std::size_t>(n) + 1] - row;
  const std::int64_t first_rows = std::min(rows, tokens * batch.shape.num_householder);
  const std::int64_t slot = batch.state_indices[static_cast<std::size_t>(n)];
  Problem part = PartOfSequence(batch, n, 0, first_rows);
  const Results first = RunProblem(backend, part);
  part = PartOfSequence(batch, n, first_rows, rows - first_rows);
  part.state = first.state;
  part.initial = InitialState::kSlot;
  if (slot < 0) {  // only what came back leads on
    part.initial = InitialState::kTensor;
    part.initial_state = first.final_state;
  }
  const Results second = RunProblem(backend, part);
  Require(Concatenate(first.v_new, second.v_new).bytes == Rows(together.v_new, row, rows).bytes, "split: v_new");
  Require(second.final_state.bytes == Rows(together.final_state, n, 1).bytes, "split: final_state");
  if (slot >= 0) {
    Require(Rows(second.state, slot, 1).bytes == Rows(together.state, slot, 1).bytes, "split: state");
  }
}

void Run(const std::uint8_t* data, std::size_t size) {
  static auto& backend =
      *kernels::CreateBackend({.choice = kernels::BackendChoice::kCpu, .cpu_threads = 2}).value().release();
  Bytes bytes(data, size);
  const ProblemSpec spec = Draw(bytes);
  const std::int64_t split = spec.shape.chunk_size * (1 + bytes.Below(3));
  std::uint64_t seed = 0;
  for (int i = 0; i < 4; ++i) seed = 256 * seed + static_cast<std::uint64_t>(bytes.Below(256));
  const Problem batch = RandomProblem(spec, seed);
  const Results together = RunProblem(backend, batch);

  const ExactOutputs exact = ExactRecurrence(batch);
  // v_new is rounded to the input's dtype.
  const double rounding = spec.shape.input_dtype == DataType::kFloat32    ? 1e-5
                          : spec.shape.input_dtype == DataType::kBFloat16 ? 4e-3
                                                                          : 5e-4;
  const double growth = GrowthOfErrors(batch);
  if (!exact.h.empty()) RequireClose(together.h, exact.h, 1e-5, growth, "h against float64");
  if (!exact.v_new.empty()) RequireClose(together.v_new, exact.v_new, rounding, growth, "v_new against float64");
  RequireClose(together.final_state, exact.final_state, 1e-5, growth, "final_state against float64");
  RequireClose(together.state, exact.state, 1e-5, growth, "state against float64");

  std::int64_t boundary = 0;
  for (std::int64_t n = 0; n < batch.sequences(); ++n) {
    const Results alone = RunProblem(backend, OneSequence(batch, n));
    const std::int64_t row = batch.cu_seqlens[static_cast<std::size_t>(n)];
    const std::int64_t rows = batch.cu_seqlens[static_cast<std::size_t>(n) + 1] - row;
    const std::int64_t slot = batch.state_indices[static_cast<std::size_t>(n)];
    Require(Rows(together.v_new, row, rows).bytes == alone.v_new.bytes, "merged: v_new");
    Require(Rows(together.h, boundary, batch.BoundaryCount(n)).bytes == alone.h.bytes, "merged: h");
    Require(Rows(together.final_state, n, 1).bytes == alone.final_state.bytes, "merged: final_state");
    if (slot >= 0) {
      Require(Rows(together.state, slot, 1).bytes == Rows(alone.state, slot, 1).bytes, "merged: state");
    }
    CheckSplit(backend, batch, together, n, split);
    boundary += batch.BoundaryCount(n);
  }
}

}  // namespace
}  // namespace gdpcache::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gdpcache::testing::Run(data, size);
  return 0;
}
