#ifndef GDPCACHE_SERVER_ENGINE_PREFILL_PLAN_H_
#define GDPCACHE_SERVER_ENGINE_PREFILL_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/recurrence.h"
#include "server/cache/geometry.h"
#include "server/engine/prefill_request.h"

namespace gdpcache::engine {

inline constexpr std::int64_t kMaxSequences = 65'536;   // N of one call
inline constexpr std::int64_t kMaxNumHouseholder = 64;  // M of one call
inline constexpr std::int64_t kMaxDirectives = 65'536;  // snapshots of one call

/// One sequence of a validated call.
struct SequencePlan {
  std::int64_t begin = 0;    // first row on the expanded stream
  std::int64_t length = 0;   // expanded tokens
  std::int64_t slot = -1;    // -1: none
  std::int64_t h_begin = 0;  // its states in h: [h_begin, h_end)
  std::int64_t h_end = 0;
};

/// One boundary to be kept.
struct SnapshotPlan {
  std::int64_t sequence = 0;
  std::int64_t boundary = 0;  // BoundaryCount() is the sequence's end
  std::int64_t tokens = 0;    // of the sequence before it
  std::string key;
  std::size_t first = 0;        // the first snapshot of this key in the call: the one that is kept
  absl::string_view auxiliary;  // the caller's memory
};

/// A call whose every field has been validated against its cache's geometry, and what follows from them. Only what
/// depends on the moment is left: who holds the slots, their positions, the values of the tensors.
struct PrefillPlan {
  std::int64_t layer = 0;
  kernels::RecurrenceShape shape;
  std::vector<SequencePlan> sequences;           // N
  std::vector<std::int64_t> chunk_offsets;       // [N + 1] prefix sums of boundaries
  std::vector<std::int64_t> slots;               // state_indices: [N], -1 for none, or empty
  std::vector<std::int64_t> expected_positions;  // [N] or empty
  std::int64_t rows = 0;  // T, expanded tokens; those from the last sequence's end on are ignored
  InitialStateSource initial_state_source = InitialStateSource::kSlot;
  StateSelectionMode states = StateSelectionMode::kNone;
  std::vector<BoundaryRef> selected;  // kSelected: what h holds
  std::int64_t h_states = 0;          // states in h
  kernels::DataType states_dtype = kernels::DataType::kFloat32;
  std::vector<SnapshotPlan> snapshots;  // as the directives stand
  bool has_g = false;
  bool natural_decay = false;
  bool save_new_value = false;
  bool output_final_state = false;
  bool check_finite = false;
  bool has_auxiliary_state = false;

  // Bytes of whole tensors; 0 for those that the call does not have.
  std::int64_t k_bytes = 0;  // w is as large
  std::int64_t u_bytes = 0;
  std::int64_t g_bytes = 0;
  std::int64_t initial_state_bytes = 0;
  std::int64_t auxiliary_bytes = 0;
  std::int64_t h_bytes = 0;
  std::int64_t v_new_bytes = 0;
  std::int64_t final_state_bytes = 0;

  std::int64_t sequence_count() const { return static_cast<std::int64_t>(sequences.size()); }
  /// End of the last sequence on the expanded stream.
  std::int64_t used_rows() const { return sequences.empty() ? 0 : sequences.back().begin + sequences.back().length; }
  std::int64_t boundary_rows() const { return shape.num_householder * shape.chunk_size; }
  std::int64_t output_bytes() const { return h_bytes + v_new_bytes + final_state_bytes; }
  /// Multiplications and additions of the recurrence.
  double flops() const;
};

/// Boundary states that a sequence of `length` expanded tokens emits.
std::int64_t BoundaryCount(const PrefillPlan& plan, std::int64_t length);

/// Checks everything in `request` that prefill.proto and the geometry rule, and derives the plan. INVALID_ARGUMENT
/// names the field and both values. Which session holds the slots, and whether one is named twice, is SlotTable's to
/// check.
absl::StatusOr<PrefillPlan> PlanPrefill(const PrefillRequest& request, const cache::Geometry& geometry);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_PREFILL_PLAN_H_
