#ifndef GDPCACHE_KERNELS_CUDA_DESCRIPTORS_H_
#define GDPCACHE_KERNELS_CUDA_DESCRIPTORS_H_

#include <cstdint>

#include "kernels/data_type.h"

/// What the host tells the kernels, as plain data: no Abseil, so that the device code can include it.
namespace gdpcache::kernels::cuda {

/// A [H, K, V] state in device-reachable memory.
struct StateReference {
  void* data = nullptr;          // nullptr: none
  std::int64_t head_stride = 0;  // elements
  DataType dtype = DataType::kFloat32;
};

/// One destination of one boundary.
struct BoundaryDescriptor {
  std::int64_t boundary = 0;
  StateReference destination;
};

/// One sequence of a launch; the pointers are those of kernels::Sequence.
struct SequenceDescriptor {
  std::int64_t length = 0;
  const void* k = nullptr;
  const void* w = nullptr;
  const void* u = nullptr;
  const float* g = nullptr;
  void* v_new = nullptr;
  StateReference initial_state;
  StateReference slot;
  StateReference final_state;
  StateReference all_boundaries;
  std::int32_t first_boundary = 0;  // into the launch's boundary descriptors
  std::int32_t boundary_count = 0;
  // Of the kernel for compute capability 9.0: what leads to tensor maps, -1 where something goes without.
  std::int32_t map_index = -1;       // the first of the maps of k, w and u
  std::int32_t first_row = 0;        // in these
  std::int32_t boundary_state = -1;  // boundary 0 in the map of boundaries
  std::int32_t initial_state_index = -1;
  std::int32_t slot_index = -1;
  std::int32_t reserved = 0;
};
static_assert(sizeof(SequenceDescriptor) % 16 == 0);

/// The sizes all sequences of a launch share.
struct LaunchShape {
  std::int64_t heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  std::int64_t num_householder = 1;
  std::int32_t chunk_size = 64;
  DataType input_dtype = DataType::kBFloat16;
  bool high_precision = false;
};

/// One state to copy, convert or clear, see kernels::StateCopy.
struct StateCopyDescriptor {
  StateReference destination;
  StateReference source;
};

/// A range to look through, see kernels::FiniteCheck.
struct FiniteCheckDescriptor {
  const void* data = nullptr;
  std::int64_t elements = 0;
  DataType dtype = DataType::kFloat32;
};

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_DESCRIPTORS_H_
