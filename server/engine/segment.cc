#include "server/engine/segment.h"

#include <algorithm>
#include <type_traits>

namespace gdpcache::engine {
namespace {

std::int64_t StateElements(const PrefillPlan& plan) {
  return plan.shape.heads * plan.shape.key_dim * plan.shape.value_dim;
}

std::int64_t RowBytes(const PrefillPlan& plan) {
  const std::int64_t value_rows = plan.save_new_value ? 2 : 1;
  return 2 * KeyRowBytes(plan) + value_rows * ValueRowBytes(plan) + (plan.has_g ? 4 * plan.shape.heads : 0);
}

/// First state of h that is boundary `boundary` of sequence `n`, or comes after it.
std::int64_t StateOfBoundary(const PrefillPlan& plan, std::int64_t n, std::int64_t boundary) {
  const SequencePlan& sequence = plan.sequences[n];
  if (plan.states != StateSelectionMode::kSelected) return std::min(sequence.h_begin + boundary, sequence.h_end);
  const auto begin = plan.selected.begin() + sequence.h_begin;
  const auto end = plan.selected.begin() + sequence.h_end;
  const auto found = std::lower_bound(begin, end, boundary,
                                      [](const BoundaryRef& ref, std::int64_t value) { return ref.boundary < value; });
  return found - plan.selected.begin();
}

template <typename T>
T* Offset(T* base, std::int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return base == nullptr ? nullptr : static_cast<Byte*>(base) + bytes;
}

}  // namespace

std::int64_t KeyRowBytes(const PrefillPlan& plan) {
  return plan.shape.heads * plan.shape.key_dim * kernels::ByteSize(plan.shape.input_dtype);
}

std::int64_t ValueRowBytes(const PrefillPlan& plan) {
  return plan.shape.heads * plan.shape.value_dim * kernels::ByteSize(plan.shape.input_dtype);
}

std::int64_t StateBytes(const PrefillPlan& plan, kernels::DataType dtype) {
  return StateElements(plan) * kernels::ByteSize(dtype);
}

Segment SegmentCutter::Next() {
  started_ = true;
  const std::int64_t row_bytes = RowBytes(plan_);
  const std::int64_t h_state_bytes = StateBytes(plan_, plan_.states_dtype);
  const std::int64_t final_bytes = plan_.output_final_state ? StateBytes(plan_, kernels::DataType::kFloat32) : 0;
  const std::int64_t sequences = plan_.sequence_count();

  Segment segment;
  segment.row_begin = row_;
  segment.sequence_begin = sequence_;
  segment.sequence_end = sequence_;
  segment.h_begin = h_;
  segment.final_begin = sequence_;
  std::int64_t bytes = 0;
  bool full = false;
  while (!full && sequence_ < sequences) {
    const SequencePlan& sequence = plan_.sequences[sequence_];
    const std::int64_t end = sequence.begin + sequence.length;
    // One boundary's rows at a time; a zero-length sequence takes none.
    while (true) {
      const std::int64_t rows = std::min(plan_.boundary_rows(), end - row_);
      const std::int64_t next_h =
          rows == 0 ? h_ : StateOfBoundary(plan_, sequence_, (row_ - sequence.begin) / plan_.boundary_rows() + 1);
      const bool ends = row_ + rows == end;
      const std::int64_t more = rows * row_bytes + (next_h - h_) * h_state_bytes + (ends ? final_bytes : 0);
      if (bytes > 0 && bytes + more > target_bytes_) {
        full = true;
        break;
      }
      bytes += more;
      row_ += rows;
      h_ = next_h;
      segment.sequence_end = sequence_ + 1;
      if (ends) {
        ++sequence_;
        break;
      }
    }
  }
  segment.final_end = sequence_;
  if (segment.sequence_begin == segment.sequence_end) {
    row_ += std::min(plan_.rows - row_, std::max<std::int64_t>(1, target_bytes_ / row_bytes));
  }
  segment.row_end = row_;
  segment.h_end = h_;
  return segment;
}

std::int64_t SegmentCutter::MaxSegmentBytes() const {
  const std::int64_t unit = plan_.boundary_rows() * RowBytes(plan_) +
                            (plan_.states == StateSelectionMode::kNone ? 0 : StateBytes(plan_, plan_.states_dtype)) +
                            (plan_.output_final_state ? StateBytes(plan_, kernels::DataType::kFloat32) : 0);
  return std::max(unit, target_bytes_);
}

Segment WholeCall(const PrefillPlan& plan) {
  Segment segment;
  segment.row_end = plan.rows;
  segment.sequence_end = plan.sequence_count();
  segment.h_end = plan.h_states;
  segment.final_end = plan.sequence_count();
  return segment;
}

Launch DescribeSegment(const PrefillPlan& plan, const Segment& segment, const SegmentMemory& memory,
                       absl::FunctionRef<SequenceStates(std::int64_t sequence, bool begins, bool ends)> states) {
  const std::int64_t key_row = KeyRowBytes(plan);
  const std::int64_t value_row = ValueRowBytes(plan);
  const std::int64_t h_state = StateBytes(plan, plan.states_dtype);
  const std::int64_t final_state = StateBytes(plan, kernels::DataType::kFloat32);
  const std::int64_t head_stride = plan.shape.key_dim * plan.shape.value_dim;

  Launch launch;
  launch.sequences.reserve(segment.sequence_end - segment.sequence_begin);
  if (plan.states == StateSelectionMode::kSelected) launch.boundaries.reserve(segment.h_end - segment.h_begin);
  for (std::int64_t n = segment.sequence_begin; n < segment.sequence_end; ++n) {
    const SequencePlan& sequence = plan.sequences[n];
    const std::int64_t begin = std::max(sequence.begin, segment.row_begin);
    const std::int64_t end = std::min(sequence.begin + sequence.length, segment.row_end);
    const std::int64_t first_boundary = (begin - sequence.begin) / plan.boundary_rows();
    const std::int64_t row = begin - segment.row_begin;
    const SequenceStates places = states(n, begin == sequence.begin, n < segment.final_end);

    kernels::Sequence descriptor;
    descriptor.length = end - begin;
    descriptor.k = Offset(memory.k, row * key_row);
    descriptor.w = Offset(memory.w, row * key_row);
    descriptor.u = Offset(memory.u, row * value_row);
    descriptor.g = memory.g == nullptr ? nullptr : memory.g + row * plan.shape.heads;
    descriptor.v_new = Offset(memory.v_new, row * value_row);
    descriptor.initial_state = places.initial;
    descriptor.slot = places.destination;
    if (plan.output_final_state && n < segment.final_end) {
      descriptor.final_state = {Offset(memory.final_state, (n - segment.final_begin) * final_state),
                                kernels::DataType::kFloat32, head_stride};
    }
    const std::int64_t h_begin = StateOfBoundary(plan, n, first_boundary);
    const std::int64_t h_end = StateOfBoundary(plan, n, first_boundary + BoundaryCount(plan, descriptor.length));
    if (h_begin < h_end) {
      void* const h = Offset(memory.h, (h_begin - segment.h_begin) * h_state);
      if (plan.states == StateSelectionMode::kAll) {
        descriptor.all_boundaries = {h, plan.states_dtype, head_stride};
      } else {
        const std::size_t first = launch.boundaries.size();
        for (std::int64_t i = h_begin; i < h_end; ++i) {
          launch.boundaries.push_back({plan.selected[i].boundary - first_boundary,
                                       {Offset(h, (i - h_begin) * h_state), plan.states_dtype, head_stride}});
        }
        descriptor.boundaries = absl::MakeConstSpan(launch.boundaries).subspan(first);
      }
    }
    launch.sequences.push_back(descriptor);
  }
  return launch;
}

}  // namespace gdpcache::engine
