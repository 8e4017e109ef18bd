#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_MAPS_H_
#define GDPCACHE_KERNELS_CUDA_HOPPER_MAPS_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cuda/descriptors.h"
#include "kernels/cuda/recurrence_hopper.h"
#include "kernels/cuda/tensor_map.h"

namespace gdpcache::kernels::cuda {

/// The tensor maps of a launch, as few as possible, since each takes the driver's time: one for all initial states, one
/// for all slots, one for all boundaries, and one each of k, w and u for every run of sequences that lie behind each
/// other in memory.
class HopperMaps {
 public:
  /// Tells the sequences where they lie in which map; what no map can address stays without.
  HopperMaps(const LaunchShape& shape, const HopperTiling& tiling, absl::Span<SequenceDescriptor> sequences);

  std::size_t count() const { return kStateMaps + 3 * runs_.size(); }

  /// Writes count() maps.
  absl::Status Encode(const TensorMapEncoder& encoder, CUtensorMap* maps) const;

 private:
  /// Rows that sequences share.
  struct Run {
    const void* k;
    const void* w;
    const void* u;
    std::int64_t length;
  };

  void PlanRuns(absl::Span<SequenceDescriptor> sequences);
  /// Every state that `reference` names, one map for those of the first one's kind.
  TensorMapEncoder::States PlanStates(absl::Span<SequenceDescriptor> sequences,
                                      StateReference SequenceDescriptor::*reference,
                                      std::int32_t SequenceDescriptor::*index) const;
  TensorMapEncoder::States PlanBoundaries(absl::Span<SequenceDescriptor> sequences) const;

  LaunchShape shape_;
  HopperTiling tiling_;
  std::vector<Run> runs_;
  TensorMapEncoder::States initial_states_;
  TensorMapEncoder::States slots_;
  TensorMapEncoder::States boundaries_;
};

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_HOPPER_MAPS_H_
