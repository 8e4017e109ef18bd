#include <algorithm>

#include "kernels/cuda/recurrence_hopper.cuh"
#include "kernels/cuda/recurrence_hopper.h"

namespace gdpcache::kernels::cuda {
namespace {

constexpr int kWideTile = 64;
constexpr int kNarrowTile = 32;

template <typename T, int KP, int Tile>
cudaError_t Launch(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream) {
  constexpr int kShared = hopper::Plan<KP, Tile>::kAllocation;
  static_assert(kShared <= 227 * 1024);
  if (const cudaError_t error =
          cudaFuncSetAttribute(hopper::Recurrence<T, KP, Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
      error != cudaSuccess) {
    return error;
  }
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(arguments.items, multiprocessors));
  hopper::Recurrence<T, KP, Tile><<<blocks, hopper::kThreads, kShared, stream>>>(arguments);
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchForKeys(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream) {
  const int key_dim = arguments.shape.key_dim;
  const bool wide = arguments.value_tile == kWideTile;
  if (key_dim > 192) return Launch<T, 256, kNarrowTile>(arguments, multiprocessors, stream);
  if (key_dim > 128) return Launch<T, 192, kNarrowTile>(arguments, multiprocessors, stream);
  if (key_dim > 64) {
    return wide ? Launch<T, 128, kWideTile>(arguments, multiprocessors, stream)
                : Launch<T, 128, kNarrowTile>(arguments, multiprocessors, stream);
  }
  return wide ? Launch<T, 64, kWideTile>(arguments, multiprocessors, stream)
              : Launch<T, 64, kNarrowTile>(arguments, multiprocessors, stream);
}

}  // namespace

bool HopperCovers(const LaunchShape& shape) {
  return shape.chunk_size == kHopperChunk && shape.input_dtype != DataType::kFloat32 && shape.key_dim % 8 == 0 &&
         shape.value_dim % 8 == 0;
}

int HopperValueTile(const LaunchShape& shape, std::int64_t sequences, int multiprocessors) {
  if (shape.key_dim > 128 || shape.value_dim <= kNarrowTile) return kNarrowTile;
  const std::int64_t wide_tiles = (shape.value_dim + kWideTile - 1) / kWideTile;
  return sequences * shape.heads * wide_tiles <= multiprocessors / 3 ? kNarrowTile : kWideTile;
}

int HopperIncomingBuffers(const LaunchShape& shape) { return shape.key_dim <= 64 ? 2 : 1; }

cudaError_t LaunchHopperRecurrence(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream) {
  if (arguments.shape.input_dtype == DataType::kBFloat16) {
    return LaunchForKeys<__nv_bfloat16>(arguments, multiprocessors, stream);
  }
  return LaunchForKeys<__half>(arguments, multiprocessors, stream);
}

}  // namespace gdpcache::kernels::cuda
