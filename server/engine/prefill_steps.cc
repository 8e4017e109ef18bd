#include "server/engine/prefill_steps.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"

namespace gdpcache::engine {

absl::StatusOr<Places> TakeSlots(const PrefillPlan& plan, const CallContext& context, const cache::Cache& cache) {
  if (absl::Status status = cache.slots().CheckHeld(context.session->key(), plan.slots, "state_indices", true);
      !status.ok()) {
    return status;
  }
  Places places{.layers = {plan.layer}, .slots = {}};
  places.slots.reserve(plan.slots.size());
  for (const std::int64_t slot : plan.slots) {
    if (slot >= 0) places.slots.push_back(slot);
  }
  return places;
}

absl::Status CheckPositions(const PrefillPlan& plan, const cache::Cache& cache) {
  std::vector<cache::PositionDifference> differences;
  for (std::size_t n = 0; n < plan.expected_positions.size(); ++n) {
    const std::int64_t expected = plan.expected_positions[n];
    const std::int64_t slot = plan.sequences[n].slot;
    if (expected < 0 || slot < 0) continue;
    const std::int64_t actual = cache.slots().Position(plan.layer, slot);
    if (actual != expected) differences.push_back({static_cast<std::int64_t>(n), slot, expected, actual});
  }
  if (differences.empty()) return absl::OkStatus();
  return cache::PositionMismatch(std::move(differences));
}

absl::Status CheckFinite(kernels::Backend& backend, kernels::Stream& stream, const PrefillPlan& plan,
                         const Segment& segment, const SegmentMemory& memory, const Launch& launch) {
  const kernels::RecurrenceShape& shape = plan.shape;
  const std::int64_t rows = std::min(segment.row_end, plan.used_rows()) - segment.row_begin;
  std::vector<kernels::FiniteCheck> checks;
  std::vector<std::string> names;
  if (rows > 0) {
    checks = {{memory.k, rows * shape.heads * shape.key_dim, shape.input_dtype},
              {memory.w, rows * shape.heads * shape.key_dim, shape.input_dtype},
              {memory.u, rows * shape.heads * shape.value_dim, shape.input_dtype}};
    if (memory.g != nullptr) checks.push_back({memory.g, rows * shape.heads, kernels::DataType::kFloat32});
  }
  const std::size_t operands = checks.size();
  for (std::size_t i = 0; i < launch.sequences.size(); ++i) {
    const kernels::Sequence& sequence = launch.sequences[i];
    const std::int64_t n = segment.sequence_begin + static_cast<std::int64_t>(i);
    if (plan.sequences[n].begin < segment.row_begin || sequence.initial_state.data == nullptr) continue;
    checks.push_back(
        {sequence.initial_state.data, shape.heads * shape.key_dim * shape.value_dim, sequence.initial_state.dtype});
    names.push_back(absl::StrCat(n));
  }
  const absl::StatusOr<std::int64_t> found = backend.FindNonFinite(checks, stream);
  if (!found.ok()) return found.status();
  if (*found < 0) return absl::OkStatus();
  constexpr absl::string_view kOperands[] = {"k", "w", "u", "g"};
  const auto index = static_cast<std::size_t>(*found);
  if (index < operands) {
    return cache::InvalidField(kOperands[index],
                               absl::StrCat("holds a NaN or an infinity in rows ", segment.row_begin, " to ",
                                            segment.row_begin + rows - 1, "; check_finite is set"));
  }
  const bool from_tensor = plan.initial_state_source == InitialStateSource::kTensor;
  return cache::InvalidField(
      absl::StrCat(from_tensor ? "initial_state[" : "state_indices[", names[index - operands], "]"),
      absl::StrCat(from_tensor ? "holds" : "names a slot whose state holds",
                   " a NaN or an infinity; check_finite is set"));
}

void NaturalToLog2(const float* from, float* to, std::int64_t elements) {
  constexpr float kLog2E = 1.44269504088896340736F;
  for (std::int64_t i = 0; i < elements; ++i) to[i] = from[i] * kLog2E;
}

std::vector<std::int64_t> Positions(const PrefillPlan& plan, const cache::Cache& cache) {
  std::vector<std::int64_t> positions;
  positions.reserve(plan.sequences.size());
  for (const SequencePlan& sequence : plan.sequences) {
    positions.push_back(sequence.slot < 0 ? -1 : cache.slots().Position(plan.layer, sequence.slot));
  }
  return positions;
}

void AdvancePositions(const PrefillPlan& plan, cache::Cache& cache) {
  const bool continues = plan.initial_state_source == InitialStateSource::kSlot;
  for (const SequencePlan& sequence : plan.sequences) {
    if (sequence.slot < 0) continue;
    const std::int64_t before = continues ? cache.slots().Position(plan.layer, sequence.slot) : 0;
    cache.slots().SetPosition(plan.layer, sequence.slot, before + sequence.length / plan.shape.num_householder);
  }
}

SequenceStates StatesInPlace(const PrefillPlan& plan, const cache::Cache& cache, const float* initial_state,
                             std::int64_t n) {
  const SequencePlan& sequence = plan.sequences[n];
  SequenceStates states;
  if (sequence.slot >= 0) states.destination = cache.pool().State(plan.layer, sequence.slot);
  switch (plan.initial_state_source) {
    case InitialStateSource::kSlot:
      states.initial = states.destination;
      if (sequence.length == 0) states.destination = {};
      break;
    case InitialStateSource::kZero:
      break;
    case InitialStateSource::kTensor: {
      const std::int64_t head = plan.shape.key_dim * plan.shape.value_dim;
      states.initial = {initial_state + n * plan.shape.heads * head, kernels::DataType::kFloat32, head};
      break;
    }
  }
  return states;
}

kernels::ByteRange UnusedRows(const PrefillPlan& plan, const Segment& segment, void* v_new) {
  const std::int64_t begin = std::max(plan.used_rows(), segment.row_begin);
  if (v_new == nullptr || begin >= segment.row_end) return {};
  const std::int64_t row = ValueRowBytes(plan);
  return {static_cast<std::byte*>(v_new) + (begin - segment.row_begin) * row,
          static_cast<std::size_t>((segment.row_end - begin) * row)};
}

void ZeroUnusedRows(const PrefillPlan& plan, const Segment& segment, void* v_new) {
  const kernels::ByteRange unused = UnusedRows(plan, segment, v_new);
  if (unused.size > 0) std::memset(unused.data, 0, unused.size);
}

absl::Status CommitPrefill(kernels::Backend& backend, kernels::Stream& stream, const PrefillPlan& plan,
                           cache::Cache& cache, const std::byte* auxiliary, std::byte* backup,
                           absl::FunctionRef<absl::Status()> write_states) {
  std::vector<kernels::ByteCopy> save;
  std::vector<kernels::ByteCopy> write;
  std::vector<kernels::ByteCopy> restore;
  if (auxiliary != nullptr) {
    for (std::int64_t n = 0; n < plan.sequence_count(); ++n) {
      if (plan.sequences[n].slot < 0) continue;
      const kernels::ByteRange place = cache.pool().Auxiliary(plan.layer, plan.sequences[n].slot);
      const auto offset = n * static_cast<std::int64_t>(place.size);
      save.push_back({backup + offset, place.data, place.size});
      write.push_back({place.data, auxiliary + offset, place.size});
      restore.push_back({place.data, backup + offset, place.size});
    }
  }
  if (!write.empty()) {
    absl::Status status = backend.CopyBytes(save, stream);
    if (status.ok()) status = backend.CopyBytes(write, stream);
    if (!status.ok()) return status;
  }
  if (absl::Status status = write_states(); !status.ok()) {
    // Both copies are known to work; only a lost device can refuse this one, and then nothing is left to be saved.
    if (!restore.empty()) status.Update(backend.CopyBytes(restore, stream));
    status.Update(backend.Synchronize(stream));
    return status;
  }
  if (absl::Status status = backend.Synchronize(stream); !status.ok()) return status;
  AdvancePositions(plan, cache);
  return absl::OkStatus();
}

}  // namespace gdpcache::engine
