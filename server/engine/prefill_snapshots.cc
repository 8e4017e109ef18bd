#include "server/engine/prefill_snapshots.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/slot_memory.h"

namespace gdpcache::engine {

absl::Status PrefillSnapshots::Begin(const Environment& environment, const CallContext& context,
                                     const PrefillPlan& plan) {
  if (plan.snapshots.empty()) return absl::OkStatus();
  store_ = environment.snapshots;
  if (store_ == nullptr) return absl::UnimplementedError("the server keeps no snapshots");
  const cache::Cache& cache = *context.session->cache();
  state_dtype_ = cache.geometry().state_dtype;
  const bool continues = plan.initial_state_source == InitialStateSource::kSlot;
  cache::SnapshotRecord record{.space = SpaceOf(*context.session), .key = "", .position = 0};
  std::vector<std::int64_t> positions;
  positions.reserve(plan.snapshots.size());
  firsts_.reserve(plan.snapshots.size());
  drafts_.reserve(plan.snapshots.size());
  for (std::size_t i = 0; i < plan.snapshots.size(); ++i) {
    const SnapshotPlan& snapshot = plan.snapshots[i];
    const std::int64_t slot = plan.sequences[snapshot.sequence].slot;
    record.key = snapshot.key;
    record.position = snapshot.tokens + (continues && slot >= 0 ? cache.slots().Position(plan.layer, slot) : 0);
    positions.push_back(record.position);
    firsts_.push_back(snapshot.first);
    if (snapshot.first < i) {
      if (const std::int64_t position = positions[snapshot.first]; position != record.position) {
        return absl::FailedPreconditionError(absl::StrCat("snapshots[", i, "] is at position ", record.position,
                                                          "; snapshots[", snapshot.first,
                                                          "], which has the same key, is at position ", position));
      }
      drafts_.emplace_back();
      continue;
    }
    absl::StatusOr<cache::SnapshotDraft> draft = store_->BeginPart(context.session->key(), record, plan.layer);
    if (!draft.ok()) return draft.status();
    if (draft->outcome().result == cache::SnapshotResult::kPending) order_.push_back(i);
    drafts_.push_back(*std::move(draft));
  }
  std::sort(order_.begin(), order_.end(), [&plan](std::size_t a, std::size_t b) {
    const SnapshotPlan& left = plan.snapshots[a];
    const SnapshotPlan& right = plan.snapshots[b];
    return std::tie(left.sequence, left.boundary, a) < std::tie(right.sequence, right.boundary, b);
  });
  return absl::OkStatus();
}

kernels::StateView PrefillSnapshots::StateOf(std::size_t directive, const PrefillPlan& plan) const {
  return {drafts_[directive].parts()[0].state.data, state_dtype_, plan.shape.key_dim * plan.shape.value_dim};
}

void PrefillSnapshots::Join(const PrefillPlan& plan, const Segment& segment, Launch& launch) {
  copied_.clear();
  final_copies_.clear();
  if (next_ == order_.size()) return;
  std::vector<kernels::BoundaryStore> boundaries;
  boundaries.reserve(launch.boundaries.size() + order_.size() - next_);
  for (std::size_t i = 0; i < launch.sequences.size(); ++i) {
    kernels::Sequence& descriptor = launch.sequences[i];
    const std::int64_t n = segment.sequence_begin + static_cast<std::int64_t>(i);
    const std::int64_t begin = plan.sequences[n].begin;
    const std::int64_t first = (std::max(begin, segment.row_begin) - begin) / plan.boundary_rows();
    const std::int64_t end = first + BoundaryCount(plan, descriptor.length);
    const std::size_t first_store = boundaries.size();
    auto wanted = descriptor.boundaries.begin();  // by the caller
    for (; next_ < order_.size(); ++next_) {
      const SnapshotPlan& snapshot = plan.snapshots[order_[next_]];
      if (snapshot.sequence != n || snapshot.boundary >= end) break;
      for (; wanted != descriptor.boundaries.end() && wanted->boundary <= snapshot.boundary - first; ++wanted) {
        boundaries.push_back(*wanted);
      }
      boundaries.push_back({snapshot.boundary - first, StateOf(order_[next_], plan)});
    }
    boundaries.insert(boundaries.end(), wanted, descriptor.boundaries.end());
    descriptor.boundaries = absl::MakeConstSpan(boundaries).subspan(first_store);

    // What is left of a sequence that ends here is kept at its end.
    for (; n < segment.final_end && next_ < order_.size() && plan.snapshots[order_[next_]].sequence == n; ++next_) {
      const kernels::StateView state = StateOf(order_[next_], plan);
      if (descriptor.slot.data == nullptr) {
        descriptor.slot = state;
      } else if (descriptor.final_state.data == nullptr) {
        descriptor.final_state = state;
      } else {
        copied_.push_back(order_[next_]);
        final_copies_.push_back({state, descriptor.slot});
      }
    }
  }
  launch.boundaries = std::move(boundaries);
}

absl::Status PrefillSnapshots::CopyFinalStates(kernels::Backend& backend, const kernels::RecurrenceShape& shape,
                                               kernels::Stream& stream) {
  if (final_copies_.empty()) return absl::OkStatus();
  absl::Status status = backend.CopyStates(shape, final_copies_, stream);
  if (status.ok() || absl::IsUnavailable(status)) return status;
  for (const std::size_t directive : copied_) {
    drafts_[directive] = cache::SnapshotDraft({.result = cache::SnapshotResult::kNoSpace,
                                               .position = drafts_[directive].outcome().position,
                                               .message = std::string(status.message())});
  }
  return absl::OkStatus();
}

absl::Status PrefillSnapshots::CopyAuxiliary(kernels::Backend& backend, const PrefillPlan& plan,
                                             kernels::Stream& stream) const {
  std::vector<kernels::ByteCopy> copies;
  for (const std::size_t directive : order_) {
    const absl::Span<const cache::SnapshotPart> parts = drafts_[directive].parts();
    // Empty when the backend would not copy the state.
    if (parts.empty() || parts[0].auxiliary.size == 0) continue;
    copies.push_back({parts[0].auxiliary.data, plan.snapshots[directive].auxiliary.data(), parts[0].auxiliary.size});
  }
  return copies.empty() ? absl::OkStatus() : backend.CopyBytes(copies, stream);
}

std::vector<cache::SnapshotOutcome> PrefillSnapshots::Commit() {
  std::vector<cache::SnapshotOutcome> outcomes;
  outcomes.reserve(drafts_.size());
  for (std::size_t i = 0; i < drafts_.size(); ++i) {
    if (firsts_[i] < i) {
      outcomes.push_back(outcomes[firsts_[i]]);
      if (outcomes.back().result == cache::SnapshotResult::kStored) {
        outcomes.back().result = cache::SnapshotResult::kPresent;
      }
      continue;
    }
    cache::SnapshotDraft& draft = drafts_[i];
    const bool pending = draft.outcome().result == cache::SnapshotResult::kPending;
    outcomes.push_back(pending ? store_->Commit(std::move(draft)) : draft.outcome());
  }
  drafts_.clear();
  return outcomes;
}

}  // namespace gdpcache::engine
