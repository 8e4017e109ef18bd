#include "tests/model/prefill_case.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/reference/exact_recurrence.h"
#include "tests/reference/numbers.h"
#include "tests/reference/problem_edit.h"

namespace gdpcache::test {
namespace {

using testing::HostTensor;
using testing::Problem;

HostTensor TensorOf(const std::string& bytes, DataType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor{KernelType(dtype), std::move(shape), {}};
  tensor.bytes.resize(bytes.size());
  std::memcpy(tensor.bytes.data(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<std::int64_t> StateShape(const kernels::RecurrenceShape& shape, std::int64_t states) {
  return {states, shape.heads, shape.key_dim, shape.value_dim};
}

SequenceNumbers RunAlone(kernels::Backend& backend, kernels::Stream& stream, const Problem& part,
                         const kernels::ConstStateView& initial) {
  const kernels::RecurrenceShape& shape = part.shape;
  SequenceNumbers numbers;
  numbers.v_new = testing::ZeroTensor(shape.input_dtype, part.u.shape);
  numbers.boundaries = testing::ZeroTensor(kernels::DataType::kFloat32, StateShape(shape, part.BoundaryCount(0)));
  numbers.final_state = testing::ZeroTensor(kernels::DataType::kFloat32, StateShape(shape, 1));
  const std::int64_t head = shape.key_dim * shape.value_dim;
  kernels::Sequence sequence;
  sequence.length = part.tokens();
  sequence.k = part.k.bytes.data();
  sequence.w = part.w.bytes.data();
  sequence.u = part.u.bytes.data();
  if (part.g.present() && sequence.length > 0) sequence.g = reinterpret_cast<const float*>(part.g.bytes.data());
  sequence.initial_state = initial;
  sequence.final_state = {numbers.final_state.bytes.data(), kernels::DataType::kFloat32, head};
  if (sequence.length > 0) {
    sequence.v_new = numbers.v_new.bytes.data();
    sequence.all_boundaries = {numbers.boundaries.bytes.data(), kernels::DataType::kFloat32, head};
  }
  absl::Status status = backend.RunRecurrence(shape, {&sequence, 1}, stream);
  if (status.ok()) status = backend.Synchronize(stream);
  if (!status.ok()) numbers.final_state.bytes.clear();  // differs from whatever the server answers
  return numbers;
}

/// The state that sequence n starts from, as [1, H, K, V]; absent for zero.
HostTensor InitialStateOf(const CacheGeometry& geometry, const LayerState* before, const PrefillCase& prefill,
                          std::int64_t n) {
  switch (prefill.call.initial_state_source) {
    case InitialState::kSlot:
      if (before == nullptr) return {};
      return TensorOf(before->state, geometry.state_dtype, StateShape(prefill.problem.shape, 1));
    case InitialState::kZero:
      return {};
    case InitialState::kTensor:
      return testing::Rows(prefill.problem.initial_state, n, 1);
  }
  return {};
}

}  // namespace

kernels::DataType KernelType(DataType dtype) {
  if (dtype == DataType::kBFloat16) return kernels::DataType::kBFloat16;
  if (dtype == DataType::kFloat16) return kernels::DataType::kFloat16;
  return kernels::DataType::kFloat32;
}

DataType ClientType(kernels::DataType dtype) {
  if (dtype == kernels::DataType::kBFloat16) return DataType::kBFloat16;
  if (dtype == kernels::DataType::kFloat16) return DataType::kFloat16;
  return DataType::kFloat32;
}

std::string Convert(const HostTensor& tensor, DataType dtype) {
  if (KernelType(dtype) == tensor.dtype) return BytesOf(tensor);
  return BytesOf(testing::Encode(KernelType(dtype), tensor.shape, testing::Decode(tensor)));
}

std::int64_t PrefillCase::Tokens(std::int64_t sequence) const {
  const auto n = static_cast<std::size_t>(sequence);
  return (problem.cu_seqlens[n + 1] - problem.cu_seqlens[n]) / problem.shape.num_householder;
}

std::int64_t PrefillCase::BoundaryPosition(std::int64_t sequence, std::int64_t boundary) const {
  const std::int64_t position_after = positions[static_cast<std::size_t>(sequence)];
  const std::int64_t here = std::min(boundary * problem.shape.chunk_size, Tokens(sequence));
  return position_after < 0 ? here : position_after - Tokens(sequence) + here;
}

std::string PrefillCase::BoundaryState(std::int64_t sequence, std::int64_t boundary, DataType dtype) const {
  const SequenceNumbers& of = numbers[static_cast<std::size_t>(sequence)];
  if (boundary == problem.BoundaryCount(sequence)) return Convert(of.final_state, dtype);
  return Convert(testing::Rows(of.boundaries, boundary, 1), dtype);
}

std::string PrefillCase::ExpectedH() const {
  const DataType dtype = call.states_dtype.value_or(call.k.dtype);
  std::string h;
  if (call.states == States::kAll) {
    for (const SequenceNumbers& of : numbers) h += Convert(of.boundaries, dtype);
  } else if (call.states == States::kSelected) {
    for (const BoundaryRef& ref : selected) h += BoundaryState(ref.sequence, ref.boundary, dtype);
  }
  return h;
}

std::string PrefillCase::ExpectedVNew() const {
  std::string v_new;
  if (!call.save_new_value) return v_new;
  for (const SequenceNumbers& of : numbers) v_new += BytesOf(of.v_new);
  const std::int64_t row = problem.shape.heads * problem.shape.value_dim * ByteSize(problem.shape.input_dtype);
  return v_new + std::string(static_cast<std::size_t>(unused_rows * row), '\0');
}

std::string PrefillCase::ExpectedFinalState() const {
  std::string state;
  if (!call.output_final_state) return state;
  for (const SequenceNumbers& of : numbers) state += BytesOf(of.final_state);
  return state;
}

void RunModel(kernels::Backend& backend, kernels::Stream& stream, const CacheGeometry& geometry,
              const std::vector<const LayerState*>& before, PrefillCase& prefill) {
  const std::int64_t head = geometry.key_dim * geometry.value_dim;
  const bool continues = prefill.call.initial_state_source == InitialState::kSlot;
  for (std::int64_t n = 0; n < prefill.sequences(); ++n) {
    const LayerState* const slot = before[static_cast<std::size_t>(n)];
    const HostTensor initial = InitialStateOf(geometry, slot, prefill, n);
    kernels::ConstStateView view;
    if (initial.present()) view = {initial.bytes.data(), initial.dtype, head};
    prefill.numbers.push_back(RunAlone(backend, stream, testing::OneSequence(prefill.problem, n), view));
    if (slot == nullptr) {
      prefill.positions.push_back(-1);
      prefill.after.emplace_back();
      continue;
    }
    LayerState after = *slot;
    // A sequence without tokens leaves the slot as it is; rounding would not change it anyway.
    after.state = Convert(prefill.numbers.back().final_state, geometry.state_dtype);
    after.position = (continues ? slot->position : 0) + prefill.Tokens(n);
    if (prefill.has_auxiliary) {
      const auto size = static_cast<std::size_t>(geometry.auxiliary_bytes);
      after.auxiliary = prefill.auxiliary.substr(static_cast<std::size_t>(n) * size, size);
    }
    prefill.positions.push_back(after.position);
    prefill.after.push_back(std::move(after));
  }
}

std::optional<std::string> CompareWithExact(const CacheGeometry& geometry, const std::vector<const LayerState*>& before,
                                            const PrefillCase& prefill) {
  constexpr double kLimit = 1e-5;
  for (std::int64_t n = 0; n < prefill.sequences(); ++n) {
    Problem part = testing::OneSequence(prefill.problem, n);
    part.state = {};
    part.state_indices.clear();
    part.initial_state = InitialStateOf(geometry, before[static_cast<std::size_t>(n)], prefill, n);
    part.initial = part.initial_state.present() ? testing::InitialState::kTensor : testing::InitialState::kZero;
    part.output_final_state = true;
    const testing::ExactOutputs exact = testing::ExactRecurrence(part);
    const SequenceNumbers& numbers = prefill.numbers[static_cast<std::size_t>(n)];
    const double of_h = testing::RelativeError(testing::Decode(numbers.boundaries), exact.h);
    const double of_final = testing::RelativeError(testing::Decode(numbers.final_state), exact.final_state);
    if (std::max(of_h, of_final) <= kLimit) continue;
    return absl::StrCat("sequence ", n, " is ", of_h, " (h) and ", of_final, " (final state) from float64");
  }
  return std::nullopt;
}

std::optional<std::string> CompareResults(const PrefillCase& prefill, const PrefillResult& result) {
  const auto bytes_of = [](const std::optional<absl::Span<const std::byte>>& placed, const OwnedTensor& owned) {
    if (!placed.has_value()) return BytesOf(owned);
    return std::string(reinterpret_cast<const char*>(placed->data()), placed->size());
  };
  if (bytes_of(prefill.placed_h, result.h) != prefill.ExpectedH()) return "h differs";
  if (bytes_of(prefill.placed_v_new, result.v_new) != prefill.ExpectedVNew()) return "v_new differs";
  if (bytes_of(prefill.placed_final_state, result.final_state) != prefill.ExpectedFinalState()) {
    return "final_state differs";
  }
  if (result.positions != prefill.positions) return "positions differ";
  if (result.chunk_offsets != prefill.chunk_offsets) return "chunk_offsets differ";
  if (result.snapshots.size() != prefill.directives.size()) return "another number of snapshot outcomes";
  return std::nullopt;
}

}  // namespace gdpcache::test
