#include "server/engine/prefill_plan.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/cache/errors.h"
#include "server/cache/snapshots/snapshot.h"

namespace gdpcache::engine {
namespace {

using cache::InvalidField;

/// Collects the plan field by field; the first error ends it.
class Planner {
 public:
  Planner(const PrefillRequest& request, const cache::Geometry& geometry) : request_(request), geometry_(geometry) {}

  absl::StatusOr<PrefillPlan> Plan() {
    using Step = absl::Status (Planner::*)();
    for (const Step step : {&Planner::PlanShape, &Planner::PlanRows, &Planner::PlanSequences, &Planner::CheckOperands,
                            &Planner::PlanSlots, &Planner::PlanInitialState, &Planner::CheckChunks,
                            &Planner::PlanStates, &Planner::PlanResults, &Planner::PlanSnapshots}) {
      if (absl::Status status = (this->*step)(); !status.ok()) return status;
    }
    return std::move(plan_);
  }

 private:
  std::int64_t N() const { return plan_.sequence_count(); }
  bool ragged() const { return !request_.cu_seqlens.empty(); }

  absl::Status PlanShape() {
    if (request_.layer < 0 || request_.layer >= geometry_.layers) {
      return InvalidField("layer",
                          absl::StrCat("is ", request_.layer, "; the cache has ", geometry_.layers, " layers"));
    }
    plan_.layer = request_.layer;
    plan_.shape.heads = geometry_.heads;
    plan_.shape.key_dim = geometry_.key_dim;
    plan_.shape.value_dim = geometry_.value_dim;

    const std::int64_t chunk_size = request_.chunk_size == 0 ? 64 : request_.chunk_size;
    if (chunk_size != 16 && chunk_size != 32 && chunk_size != 64 && chunk_size != 128) {
      return InvalidField("chunk_size", absl::StrCat("is ", chunk_size, "; it must be 16, 32, 64 or 128"));
    }
    plan_.shape.chunk_size = chunk_size;

    const std::int64_t num_householder =
        request_.num_householder == 0 ? geometry_.num_householder : request_.num_householder;
    if (num_householder < 1 || num_householder > kMaxNumHouseholder) {
      return InvalidField("num_householder",
                          absl::StrCat("is ", num_householder, "; it must be from 1 to ", kMaxNumHouseholder));
    }
    plan_.shape.num_householder = num_householder;
    plan_.shape.precision = request_.precision;
    return absl::OkStatus();
  }

  /// T and the input dtype, both from k.
  absl::Status PlanRows() {
    if (request_.batch < 0 || request_.batch > kMaxSequences) {
      return InvalidField("batch", absl::StrCat("is ", request_.batch, "; it must be from 0 to ", kMaxSequences));
    }
    if (ragged() && request_.batch != 0) {
      return InvalidField("batch", absl::StrCat("is ", request_.batch, "; it must be left out with cu_seqlens"));
    }
    const TensorArgument& k = request_.k;
    if (!k.present) return InvalidField("k", "is missing");
    const std::optional<kernels::DataType> dtype = FloatType(k.dtype);
    if (!dtype.has_value()) {
      return InvalidField("k.dtype", absl::StrCat("is ", Name(k.dtype), "; it must be float32, bfloat16 or float16"));
    }
    plan_.shape.input_dtype = *dtype;

    const absl::Span<const std::int64_t> shape = k.shape;
    if (shape.size() != 3 && shape.size() != 4) {
      return InvalidField("k.shape", absl::StrCat("is ", ShapeName(shape), "; it must have 3 or 4 dimensions"));
    }
    const std::optional<std::int64_t> rows =
        shape[0] < 0 || shape[shape.size() - 3] < 0 ? std::nullopt : BoundedProduct(shape.first(shape.size() - 2));
    if (!rows.has_value()) {
      return InvalidField("k.shape", absl::StrCat("is ", ShapeName(shape),
                                                  "; its dimensions must not be negative nor its size exceed "
                                                  "2^62 bytes"));
    }
    plan_.rows = *rows;
    return absl::OkStatus();
  }

  absl::Status PlanSequences() {
    const std::int64_t num_householder = plan_.shape.num_householder;
    if (!ragged()) {
      const std::int64_t batch = DenseBatch();
      if (plan_.rows % batch != 0) {
        return InvalidField("batch", absl::StrCat("is ", batch, "; it must divide the ", plan_.rows, " rows of k"));
      }
      const std::int64_t length = plan_.rows / batch;
      if (length % num_householder != 0) {
        return InvalidField("k.shape", absl::StrCat("gives sequences of ", length,
                                                    " expanded tokens; num_householder is ", num_householder));
      }
      plan_.sequences.resize(batch);
      for (std::int64_t n = 0; n < batch; ++n) {
        plan_.sequences[n].begin = n * length;
        plan_.sequences[n].length = length;
      }
    } else {
      const absl::Span<const std::int64_t> bounds = request_.cu_seqlens;
      const auto count = static_cast<std::int64_t>(bounds.size()) - 1;
      if (count < 1 || count > kMaxSequences) {
        return InvalidField(
            "cu_seqlens", absl::StrCat("has ", bounds.size(), " entries; it must have from 2 to ", kMaxSequences + 1));
      }
      if (bounds[0] != 0) return InvalidField("cu_seqlens[0]", absl::StrCat("is ", bounds[0], "; it must be 0"));
      plan_.sequences.resize(count);
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t end = bounds[n + 1];
        if (end < bounds[n]) {
          return InvalidField(absl::StrCat("cu_seqlens[", n + 1, "]"),
                              absl::StrCat("is ", end, "; it must not be below the ", bounds[n], " before it"));
        }
        if (end % num_householder != 0) {
          return InvalidField(absl::StrCat("cu_seqlens[", n + 1, "]"),
                              absl::StrCat("is ", end, "; it must be a multiple of num_householder ", num_householder));
        }
        if (end > plan_.rows) {
          return InvalidField(absl::StrCat("cu_seqlens[", n + 1, "]"),
                              absl::StrCat("is ", end, "; k has ", plan_.rows, " rows"));
        }
        plan_.sequences[n].begin = bounds[n];
        plan_.sequences[n].length = end - bounds[n];
      }
    }

    plan_.chunk_offsets.reserve(N() + 1);
    plan_.chunk_offsets.push_back(0);
    for (const SequencePlan& sequence : plan_.sequences) {
      plan_.chunk_offsets.push_back(plan_.chunk_offsets.back() + BoundaryCount(plan_, sequence.length));
    }
    return absl::OkStatus();
  }

  std::int64_t DenseBatch() const { return request_.batch == 0 ? 1 : request_.batch; }

  /// Sets `bytes` to the tensor's; it must have `shape`, or, where it has `rows`, that with its first dimension split
  /// into [batch, T / batch].
  absl::Status TakeTensor(absl::string_view name, const TensorArgument& tensor, ElementType dtype,
                          const std::vector<std::int64_t>& shape, bool rows, std::int64_t& bytes) const {
    std::vector<std::int64_t> split;
    if (rows) {
      const std::int64_t batch = ragged() ? 1 : DenseBatch();
      split = {batch, shape[0] / batch};
      split.insert(split.end(), shape.begin() + 1, shape.end());
    }
    const absl::StatusOr<std::int64_t> checked = CheckTensor(name, tensor, dtype, shape, split, request_.transport);
    if (!checked.ok()) return checked.status();
    bytes = *checked;
    return absl::OkStatus();
  }

  absl::Status CheckOperands() {
    const std::int64_t heads = geometry_.heads;
    const std::vector<std::int64_t> key_shape = {plan_.rows, heads, geometry_.key_dim};
    const ElementType dtype = request_.k.dtype;
    if (absl::Status status = TakeTensor("k", request_.k, dtype, key_shape, true, plan_.k_bytes); !status.ok()) {
      return status;
    }
    if (!request_.w.present) return InvalidField("w", "is missing");
    if (absl::Status status = TakeTensor("w", request_.w, dtype, key_shape, true, plan_.k_bytes); !status.ok()) {
      return status;
    }
    if (!request_.u.present) return InvalidField("u", "is missing");
    if (absl::Status status =
            TakeTensor("u", request_.u, dtype, {plan_.rows, heads, geometry_.value_dim}, true, plan_.u_bytes);
        !status.ok()) {
      return status;
    }
    plan_.natural_decay = request_.natural_decay;
    plan_.has_g = request_.g.present;
    if (!plan_.has_g) return absl::OkStatus();
    return TakeTensor("g", request_.g, ElementType::kFloat32, {plan_.rows, heads}, true, plan_.g_bytes);
  }

  absl::Status CheckCount(absl::string_view field, std::size_t size, std::int64_t wanted) const {
    if (size == 0 || static_cast<std::int64_t>(size) == wanted) return absl::OkStatus();
    return InvalidField(field,
                        absl::StrCat("has ", size, " entries; it must have ", wanted, " for ", N(), " sequences"));
  }

  absl::Status PlanSlots() {
    if (absl::Status status = CheckCount("state_indices", request_.state_indices.size(), N()); !status.ok()) {
      return status;
    }
    if (!request_.state_indices.empty()) {
      plan_.slots.reserve(N());
      for (std::int64_t n = 0; n < N(); ++n) {
        plan_.sequences[n].slot = request_.state_indices[n];
        plan_.slots.push_back(request_.state_indices[n]);
      }
    }
    const absl::Span<const std::int64_t> positions = request_.expected_positions;
    if (absl::Status status = CheckCount("expected_positions", positions.size(), N()); !status.ok()) return status;
    for (std::size_t n = 0; n < positions.size(); ++n) {
      if (positions[n] < -1) {
        return InvalidField(absl::StrCat("expected_positions[", n, "]"),
                            absl::StrCat("is ", positions[n], "; it must be at least -1"));
      }
    }
    plan_.expected_positions.assign(positions.begin(), positions.end());
    plan_.check_finite = request_.check_finite;

    plan_.has_auxiliary_state = request_.auxiliary_state.present;
    if (!plan_.has_auxiliary_state) return absl::OkStatus();
    if (geometry_.auxiliary_bytes == 0) {
      return InvalidField("auxiliary_state", "is given; the cache keeps 0 auxiliary bytes");
    }
    return TakeTensor("auxiliary_state", request_.auxiliary_state, ElementType::kUint8,
                      {N(), geometry_.auxiliary_bytes}, false, plan_.auxiliary_bytes);
  }

  absl::Status PlanInitialState() {
    plan_.initial_state_source = request_.initial_state_source;
    if (request_.initial_state_source == InitialStateSource::kTensor) {
      if (!request_.initial_state.present) {
        return InvalidField("initial_state", "is missing; initial_state_source is TENSOR");
      }
      return TakeTensor("initial_state", request_.initial_state, ElementType::kFloat32,
                        {N(), geometry_.heads, geometry_.key_dim, geometry_.value_dim}, false,
                        plan_.initial_state_bytes);
    }
    if (request_.initial_state.present) {
      return InvalidField("initial_state", "is given; initial_state_source is not TENSOR");
    }
    if (request_.initial_state_source == InitialStateSource::kSlot && request_.state_indices.empty()) {
      return InvalidField("initial_state_source", "is SLOT; without state_indices it must be ZERO or TENSOR");
    }
    return absl::OkStatus();
  }

  /// What the caller may send although the server derives it.
  absl::Status CheckChunks() {
    const std::vector<std::int64_t>& offsets = plan_.chunk_offsets;
    if (absl::Status status = CheckCount("chunk_offsets", request_.chunk_offsets.size(), N() + 1); !status.ok()) {
      return status;
    }
    for (std::size_t n = 0; n < request_.chunk_offsets.size(); ++n) {
      if (request_.chunk_offsets[n] != offsets[n]) {
        return InvalidField(absl::StrCat("chunk_offsets[", n, "]"),
                            absl::StrCat("is ", request_.chunk_offsets[n], "; the lengths give ", offsets[n]));
      }
    }
    const absl::Span<const std::int64_t> indices = request_.chunk_indices;
    if (indices.empty()) return absl::OkStatus();
    if (indices.size() % 2 != 0 || static_cast<std::int64_t>(indices.size() / 2) != offsets.back()) {
      return InvalidField("chunk_indices", absl::StrCat("has ", indices.size(), " entries; the lengths give ",
                                                        offsets.back(), " pairs"));
    }
    std::size_t entry = 0;
    for (std::int64_t n = 0; n < N(); ++n) {
      for (std::int64_t chunk = 0; chunk < offsets[n + 1] - offsets[n]; ++chunk, entry += 2) {
        if (indices[entry] == n && indices[entry + 1] == chunk) continue;
        return InvalidField(absl::StrCat("chunk_indices[", entry, "]"),
                            absl::StrCat("begins the pair (", indices[entry], ", ", indices[entry + 1],
                                         "); the lengths give (", n, ", ", chunk, ")"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status PlanStates() {
    plan_.states = request_.states;
    if (request_.states_dtype == ElementType::kUnspecified) {
      plan_.states_dtype = plan_.shape.input_dtype;
    } else if (const auto dtype = FloatType(request_.states_dtype); dtype.has_value()) {
      plan_.states_dtype = *dtype;
    } else {
      return InvalidField("states_dtype", absl::StrCat("is ", Name(request_.states_dtype),
                                                       "; it must be float32, bfloat16 or float16"));
    }
    const std::vector<BoundaryRef>& selected = request_.selected;
    if (request_.states != StateSelectionMode::kSelected) {
      if (!selected.empty()) {
        return InvalidField("states.selected",
                            absl::StrCat("has ", selected.size(), " entries; states.mode is not SELECTED"));
      }
      if (request_.states == StateSelectionMode::kAll) {
        for (std::int64_t n = 0; n < N(); ++n) {
          plan_.sequences[n].h_begin = plan_.chunk_offsets[n];
          plan_.sequences[n].h_end = plan_.chunk_offsets[n + 1];
        }
        plan_.h_states = plan_.chunk_offsets.back();
      }
      return absl::OkStatus();
    }

    const auto invalid = [](std::size_t i, absl::string_view what) {
      return InvalidField(absl::StrCat("states.selected[", i, "]"), what);
    };
    for (std::size_t i = 0; i < selected.size(); ++i) {
      const auto& [sequence, boundary] = selected[i];
      if (sequence < 0 || sequence >= N()) {
        return invalid(i, absl::StrCat("names sequence ", sequence, "; the call has ", N()));
      }
      const std::int64_t count = plan_.chunk_offsets[sequence + 1] - plan_.chunk_offsets[sequence];
      if (boundary < 0 || boundary >= count) {
        return invalid(i, absl::StrCat("names boundary ", boundary, "; sequence ", sequence, " has ", count));
      }
      if (i > 0 && std::pair(sequence, boundary) <= std::pair(selected[i - 1].sequence, selected[i - 1].boundary)) {
        return invalid(i, absl::StrCat("is (", sequence, ", ", boundary, "); it must come after (",
                                       selected[i - 1].sequence, ", ", selected[i - 1].boundary, ")"));
      }
    }
    plan_.selected = selected;
    plan_.h_states = static_cast<std::int64_t>(selected.size());
    std::int64_t next = 0;
    for (std::int64_t n = 0; n < N(); ++n) {
      plan_.sequences[n].h_begin = next;
      while (next < plan_.h_states && selected[next].sequence == n) ++next;
      plan_.sequences[n].h_end = next;
    }
    return absl::OkStatus();
  }

  absl::Status PlanResults() {
    const auto state_bytes = [this](std::int64_t states, kernels::DataType dtype) {
      return BoundedProduct(
          {states, geometry_.heads, geometry_.key_dim, geometry_.value_dim, kernels::ByteSize(dtype)});
    };
    const std::optional<std::int64_t> h_bytes = state_bytes(plan_.h_states, plan_.states_dtype);
    if (!h_bytes.has_value()) {
      return InvalidField("states", absl::StrCat("selects ", plan_.h_states, " states; h would exceed 2^62 bytes"));
    }
    plan_.h_bytes = *h_bytes;
    plan_.save_new_value = request_.save_new_value;
    if (plan_.save_new_value) plan_.v_new_bytes = plan_.u_bytes;
    plan_.output_final_state = request_.output_final_state;
    if (!plan_.output_final_state) return absl::OkStatus();
    const std::optional<std::int64_t> final_state_bytes = state_bytes(N(), kernels::DataType::kFloat32);
    if (!final_state_bytes.has_value()) {
      return InvalidField("output_final_state", absl::StrCat("with ", N(), " sequences would exceed 2^62 bytes"));
    }
    plan_.final_state_bytes = *final_state_bytes;
    return absl::OkStatus();
  }

  absl::Status PlanSnapshots() {
    const std::vector<SnapshotDirective>& directives = request_.snapshots;
    if (static_cast<std::int64_t>(directives.size()) > kMaxDirectives) {
      return InvalidField("snapshots",
                          absl::StrCat("has ", directives.size(), " entries; it may have ", kMaxDirectives));
    }
    plan_.snapshots.reserve(directives.size());
    absl::flat_hash_map<absl::string_view, std::size_t> firsts;
    for (std::size_t i = 0; i < directives.size(); ++i) {
      const SnapshotDirective& directive = directives[i];
      const std::string field = absl::StrCat("snapshots[", i, "].");
      if (directive.sequence < 0 || directive.sequence >= N()) {
        return InvalidField(field + "sequence",
                            absl::StrCat("is ", directive.sequence, "; the call has ", N(), " sequences"));
      }
      const std::int64_t tokens = plan_.sequences[directive.sequence].length / plan_.shape.num_householder;
      const std::int64_t last = BoundaryCount(plan_, plan_.sequences[directive.sequence].length);
      if (directive.boundary < 0 || directive.boundary > last) {
        return InvalidField(field + "boundary",
                            absl::StrCat("is ", directive.boundary, "; sequence ", directive.sequence, " of ", tokens,
                                         " tokens has boundaries 0 to ", last));
      }
      if (absl::Status status = cache::CheckSnapshotKey(field + "key", directive.key); !status.ok()) return status;
      if (static_cast<std::int64_t>(directive.auxiliary.size()) != geometry_.auxiliary_bytes) {
        return InvalidField(field + "auxiliary", absl::StrCat("has ", directive.auxiliary.size(),
                                                              " bytes; the cache keeps ", geometry_.auxiliary_bytes));
      }
      plan_.snapshots.push_back({.sequence = directive.sequence,
                                 .boundary = directive.boundary,
                                 .tokens = std::min(directive.boundary * plan_.shape.chunk_size, tokens),
                                 .key = std::string(directive.key),
                                 .first = firsts.try_emplace(directive.key, i).first->second,
                                 .auxiliary = directive.auxiliary});
    }
    return absl::OkStatus();
  }

  const PrefillRequest& request_;
  const cache::Geometry& geometry_;
  PrefillPlan plan_;
};

}  // namespace

std::int64_t BoundaryCount(const PrefillPlan& plan, std::int64_t length) {
  return length / plan.boundary_rows() + (length % plan.boundary_rows() != 0 ? 1 : 0);
}

double PrefillPlan::flops() const {
  return 4.0 * static_cast<double>(used_rows()) * static_cast<double>(shape.heads * shape.key_dim * shape.value_dim);
}

absl::StatusOr<PrefillPlan> PlanPrefill(const PrefillRequest& request, const cache::Geometry& geometry) {
  return Planner(request, geometry).Plan();
}

}  // namespace gdpcache::engine
