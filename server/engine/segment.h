#ifndef GDPCACHE_SERVER_ENGINE_SEGMENT_H_
#define GDPCACHE_SERVER_ENGINE_SEGMENT_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/recurrence.h"
#include "server/engine/prefill_plan.h"

namespace gdpcache::engine {

/// A run of consecutive rows of one call that is computed in one launch, and what belongs to these rows. Only the first
/// and the last of its sequences may be cut, and only at multiples of boundary_rows(), where a float32 state carries
/// over without changing a bit.
struct Segment {
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t sequence_begin = 0;  // sequences with a part in this segment, zero-length ones included; none at all for
  std::int64_t sequence_end = 0;    // rows behind the last sequence
  std::int64_t h_begin = 0;         // states of h
  std::int64_t h_end = 0;
  std::int64_t final_begin = 0;  // sequences that end here
  std::int64_t final_end = 0;

  std::int64_t rows() const { return row_end - row_begin; }
};

/// Cuts a call into segments, in order, of about `target_bytes` of inputs and results each: whole sequences while they
/// fit, at least one sequence or boundary_rows() of one. There is at least one segment.
class SegmentCutter {
 public:
  /// `plan` must outlive the cutter.
  SegmentCutter(const PrefillPlan& plan, std::int64_t target_bytes) : plan_(plan), target_bytes_(target_bytes) {}

  bool AtEnd() const { return started_ && row_ == plan_.rows && sequence_ == plan_.sequence_count(); }
  Segment Next();  // only if not AtEnd

  /// No segment's inputs and results are larger than this.
  std::int64_t MaxSegmentBytes() const;

 private:
  const PrefillPlan& plan_;
  const std::int64_t target_bytes_;
  bool started_ = false;
  std::int64_t row_ = 0;
  std::int64_t sequence_ = 0;  // the one that row_ is in or that comes next
  std::int64_t h_ = 0;
};

/// The whole call as one segment.
Segment WholeCall(const PrefillPlan& plan);

/// Tensors that are where the arithmetic reaches them although it does not reach host memory.
struct TensorsOnDevice {
  bool k = false;
  bool w = false;
  bool u = false;
  bool g = false;
  bool initial_state = false;
  bool h = false;
  bool v_new = false;
  bool final_state = false;
};

/// Where a segment's tensors are; each begins with what belongs to the segment's first row, state or sequence. nullptr
/// for what the call does not have.
struct SegmentMemory {
  const void* k = nullptr;
  const void* w = nullptr;
  const void* u = nullptr;
  const float* g = nullptr;
  const float* initial_state = nullptr;
  void* h = nullptr;
  void* v_new = nullptr;
  void* final_state = nullptr;
  TensorsOnDevice on_device = {};
};

/// Where a sequence starts from in this segment, and where its state goes.
struct SequenceStates {
  kernels::ConstStateView initial;
  kernels::StateView destination;
};

/// A segment as a backend takes it.
struct Launch {
  std::vector<kernels::Sequence> sequences;
  std::vector<kernels::BoundaryStore> boundaries;  // what the sequences' spans point to
};

/// `states` is asked once for each sequence of the segment; `begins` and `ends` tell whether the sequence does so here.
Launch DescribeSegment(const PrefillPlan& plan, const Segment& segment, const SegmentMemory& memory,
                       absl::FunctionRef<SequenceStates(std::int64_t sequence, bool begins, bool ends)> states);

/// Bytes of one row of k (and w), u (and v_new), and one state.
std::int64_t KeyRowBytes(const PrefillPlan& plan);
std::int64_t ValueRowBytes(const PrefillPlan& plan);
std::int64_t StateBytes(const PrefillPlan& plan, kernels::DataType dtype);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_SEGMENT_H_
