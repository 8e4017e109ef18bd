#include "kernels/cuda/hopper_maps.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace gdpcache::kernels::cuda {
namespace {

constexpr std::int64_t kMaxCoordinate = std::numeric_limits<std::int32_t>::max() - kHopperChunk;
constexpr std::int64_t kMaxDistance = (std::int64_t{1} << 40) - 16;

std::intptr_t Address(const void* pointer) { return reinterpret_cast<std::intptr_t>(pointer); }

const void* Behind(const void* rows, std::int64_t bytes) { return static_cast<const std::byte*>(rows) + bytes; }

}  // namespace

HopperMaps::HopperMaps(const LaunchShape& shape, const HopperTiling& tiling, absl::Span<SequenceDescriptor> sequences)
    : shape_(shape), tiling_(tiling) {
  PlanRuns(sequences);
  initial_states_ = PlanStates(sequences, &SequenceDescriptor::initial_state, &SequenceDescriptor::initial_state_index);
  slots_ = PlanStates(sequences, &SequenceDescriptor::slot, &SequenceDescriptor::slot_index);
  boundaries_ = PlanBoundaries(sequences);
}

void HopperMaps::PlanRuns(absl::Span<SequenceDescriptor> sequences) {
  const std::int64_t key_row = std::int64_t{shape_.key_dim} * 2;  // bytes of one head
  const std::int64_t value_row = std::int64_t{shape_.value_dim} * 2;
  const std::int64_t key_bytes = shape_.heads * key_row;
  const std::int64_t value_bytes = shape_.heads * value_row;
  std::vector<SequenceDescriptor*> order;
  for (SequenceDescriptor& sequence : sequences) {
    if (sequence.length > kHopperUnmapped && sequence.length <= kMaxCoordinate &&
        TensorMapEncoder::CanEncode(sequence.k, key_row) && TensorMapEncoder::CanEncode(sequence.w, key_row) &&
        TensorMapEncoder::CanEncode(sequence.u, value_row)) {
      order.push_back(&sequence);
    }
  }
  const auto by_address = [](const SequenceDescriptor* a, const SequenceDescriptor* b) {
    return Address(a->k) < Address(b->k);
  };
  if (!std::is_sorted(order.begin(), order.end(), by_address)) std::sort(order.begin(), order.end(), by_address);
  for (SequenceDescriptor* sequence : order) {
    const bool continues = !runs_.empty() && runs_.back().length + sequence->length <= kMaxCoordinate &&
                           Behind(runs_.back().k, runs_.back().length * key_bytes) == sequence->k &&
                           Behind(runs_.back().w, runs_.back().length * key_bytes) == sequence->w &&
                           Behind(runs_.back().u, runs_.back().length * value_bytes) == sequence->u;
    if (!continues) runs_.push_back({sequence->k, sequence->w, sequence->u, 0});
    sequence->map_index = static_cast<std::int32_t>(kStateMaps + 3 * (runs_.size() - 1));
    sequence->first_row = static_cast<std::int32_t>(runs_.back().length);
    runs_.back().length += sequence->length;
  }
}

TensorMapEncoder::States HopperMaps::PlanStates(absl::Span<SequenceDescriptor> sequences,
                                                StateReference SequenceDescriptor::*reference,
                                                std::int32_t SequenceDescriptor::*index) const {
  TensorMapEncoder::States states;
  std::int64_t head_stride = 0;
  const auto belongs = [&](const StateReference& state) {
    return state.data != nullptr && state.dtype == DataType::kFloat32 &&
           TensorMapEncoder::CanEncode(state.data, std::int64_t{shape_.value_dim} * 4) &&
           (shape_.heads == 1 || (state.head_stride % 4 == 0 && state.head_stride == head_stride));
  };
  void* lowest = nullptr;
  std::intptr_t last = 0;
  std::int64_t distance = 0;
  for (const SequenceDescriptor& sequence : sequences) {
    const StateReference& state = sequence.*reference;
    if (states.data == nullptr) head_stride = state.head_stride;
    if (!belongs(state)) continue;
    if (states.data == nullptr) {
      states.data = state.data;
      lowest = state.data;
    }
    distance = std::gcd(distance, Address(state.data) - Address(states.data));
    if (Address(state.data) < Address(lowest)) lowest = state.data;
    last = std::max(last, Address(state.data));
  }
  if (states.data == nullptr) return states;
  const std::intptr_t first = Address(lowest);
  const std::int64_t head_bytes =
      shape_.heads == 1 ? std::int64_t{shape_.key_dim} * shape_.value_dim * 4 : head_stride * 4;
  if (distance == 0) distance = 16;
  if ((last - first) / distance > kMaxCoordinate || distance > kMaxDistance || head_bytes > kMaxDistance) return {};
  states.data = lowest;
  states.count = (last - first) / distance + 1;
  states.heads = shape_.heads;
  states.key_dim = shape_.key_dim;
  states.value_dim = shape_.value_dim;
  states.head_bytes = head_bytes;
  states.state_bytes = distance;
  for (SequenceDescriptor& sequence : sequences) {
    const StateReference& state = sequence.*reference;
    if (belongs(state)) sequence.*index = static_cast<std::int32_t>((Address(state.data) - first) / distance);
  }
  return states;
}

TensorMapEncoder::States HopperMaps::PlanBoundaries(absl::Span<SequenceDescriptor> sequences) const {
  TensorMapEncoder::States states;
  const std::int64_t per_boundary = shape_.num_householder * kHopperChunk;
  const std::int64_t head_elements = std::int64_t{shape_.key_dim} * shape_.value_dim;
  std::int64_t state_bytes = 0;
  const auto belongs = [&](const SequenceDescriptor& sequence) {
    const StateReference& all = sequence.all_boundaries;
    return all.data != nullptr && sequence.boundary_count == 0 && sequence.length > 0 && all.dtype == states.dtype &&
           TensorMapEncoder::CanEncode(all.data, std::int64_t{shape_.value_dim} * ByteSize(all.dtype)) &&
           (states.data == nullptr || (Address(all.data) - Address(states.data)) % state_bytes == 0);
  };
  void* lowest = nullptr;
  std::intptr_t last = 0;
  for (const SequenceDescriptor& sequence : sequences) {
    const StateReference& all = sequence.all_boundaries;
    if (states.data == nullptr) {
      if (all.dtype != DataType::kFloat32 && all.dtype != shape_.input_dtype) continue;
      states.dtype = all.dtype;
      state_bytes = shape_.heads * head_elements * ByteSize(all.dtype);
    }
    if (!belongs(sequence)) continue;
    if (states.data == nullptr) {
      states.data = all.data;
      lowest = all.data;
    }
    const std::int64_t count = (sequence.length + per_boundary - 1) / per_boundary;
    if (Address(all.data) < Address(lowest)) lowest = all.data;
    last = std::max(last, Address(all.data) + (count - 1) * state_bytes);
  }
  if (states.data == nullptr) return states;
  const std::intptr_t first = Address(lowest);
  if ((last - first) / state_bytes > kMaxCoordinate || state_bytes > kMaxDistance) return {};
  states.count = (last - first) / state_bytes + 1;
  states.heads = shape_.heads;
  states.key_dim = shape_.key_dim;
  states.value_dim = shape_.value_dim;
  states.head_bytes = head_elements * ByteSize(states.dtype);
  states.state_bytes = state_bytes;
  for (SequenceDescriptor& sequence : sequences) {
    if (!belongs(sequence)) continue;
    sequence.boundary_state = static_cast<std::int32_t>((Address(sequence.all_boundaries.data) - first) / state_bytes);
  }
  states.data = lowest;
  return states;
}

absl::Status HopperMaps::Encode(const TensorMapEncoder& encoder, CUtensorMap* maps) const {
  const int box_keys = (shape_.key_dim + 63) / 64 * 64;
  const int state_columns = std::min<int>(tiling_.value_tile, 32);
  absl::Status status;
  const auto encode_states = [&](int map, const TensorMapEncoder::States& states, int box_columns) {
    if (states.data != nullptr) status.Update(encoder.EncodeStates(maps + map, states, box_columns, box_keys));
  };
  encode_states(kInitialStateMap, initial_states_, state_columns);
  encode_states(kSlotMap, slots_, state_columns);
  encode_states(kBoundaryMap, boundaries_,
                boundaries_.dtype == DataType::kFloat32 ? state_columns : tiling_.value_tile);
  CUtensorMap* map = maps + kStateMaps;
  for (const Run& run : runs_) {
    status.Update(encoder.EncodeRows(map++, run.k, shape_.input_dtype, run.length, shape_.heads, shape_.key_dim, 64));
    status.Update(encoder.EncodeRows(map++, run.w, shape_.input_dtype, run.length, shape_.heads, shape_.key_dim, 64));
    status.Update(encoder.EncodeRows(map++, run.u, shape_.input_dtype, run.length, shape_.heads, shape_.value_dim,
                                     tiling_.value_tile));
  }
  return status;
}

}  // namespace gdpcache::kernels::cuda
