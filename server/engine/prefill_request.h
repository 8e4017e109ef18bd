#ifndef GDPCACHE_SERVER_ENGINE_PREFILL_REQUEST_H_
#define GDPCACHE_SERVER_ENGINE_PREFILL_REQUEST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/recurrence.h"
#include "server/engine/tensor_argument.h"

namespace gdpcache::engine {

enum class InitialStateSource : std::uint8_t { kSlot, kZero, kTensor };

enum class StateSelectionMode : std::uint8_t { kNone, kAll, kSelected };

struct BoundaryRef {
  std::int64_t sequence = 0;
  std::int64_t boundary = 0;

  bool operator==(const BoundaryRef&) const = default;
};

/// A boundary to be kept as a snapshot's part; snapshot.proto documents the fields.
struct SnapshotDirective {
  std::int64_t sequence = 0;
  std::int64_t boundary = 0;
  absl::string_view key;
  absl::string_view auxiliary;
};

/// Where results go; those without a place go where PrefillOutputs says.
struct OutputPlaces {
  RegionPlace h;
  RegionPlace v_new;
  RegionPlace final_state;
};

/// A word to be set when the call's results are complete.
struct DoneFlag {
  RegionPlace place;
  std::uint32_t value = 0;
};

/// One call of the recurrence as its caller sent it; prefill.proto documents the fields. Points into the caller's
/// message, which must outlive it.
struct PrefillRequest {
  TensorTransport transport = TensorTransport::kInline;
  std::int64_t layer = 0;
  TensorArgument k;
  TensorArgument w;
  TensorArgument u;
  TensorArgument g;
  bool natural_decay = false;  // g holds natural logarithms, not log2
  absl::Span<const std::int64_t> cu_seqlens;
  std::int64_t batch = 0;
  std::int64_t chunk_size = 0;
  std::int64_t num_householder = 0;
  absl::Span<const std::int64_t> chunk_offsets;
  absl::Span<const std::int64_t> chunk_indices;
  absl::Span<const std::int64_t> state_indices;
  InitialStateSource initial_state_source = InitialStateSource::kSlot;
  TensorArgument initial_state;
  bool save_new_value = false;
  bool output_final_state = false;
  StateSelectionMode states = StateSelectionMode::kNone;
  std::vector<BoundaryRef> selected;
  ElementType states_dtype = ElementType::kUnspecified;
  absl::Span<const std::int64_t> expected_positions;
  bool check_finite = false;
  TensorArgument auxiliary_state;
  OutputPlaces outputs;
  const cache::Region* ready_event = nullptr;  // nullptr: none
  const cache::Region* done_event = nullptr;
  DoneFlag done_flag;
  std::vector<std::shared_ptr<const cache::Region>> regions;  // all that places and events name, each once
  kernels::Precision precision = kernels::Precision::kDefault;
  std::vector<SnapshotDirective> snapshots;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_PREFILL_REQUEST_H_
