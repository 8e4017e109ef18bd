#include <algorithm>

#include "kernels/cuda/recurrence_hopper.cuh"
#include "kernels/cuda/recurrence_hopper.h"

namespace gdpcache::kernels::cuda {
namespace {

constexpr int kWideTile = 64;
constexpr int kNarrowTile = 32;

/// The kernel for one dtype, number of keys and tile.
template <typename T, int KP, int Tile, bool Short = false>
struct Variant {
  static constexpr int kShared = hopper::Plan<KP, Tile, Short>::kAllocation;
  static_assert(kShared <= 227 * 1024);

  static cudaError_t Prepare() {
    return cudaFuncSetAttribute(hopper::Recurrence<T, KP, Tile, Short>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kShared);
  }
  static cudaError_t Launch(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(arguments.items, multiprocessors));
    hopper::Recurrence<T, KP, Tile, Short><<<blocks, hopper::kThreads, kShared, stream>>>(arguments);
    return cudaGetLastError();
  }
};

template <typename T>
cudaError_t PrepareAll() {
  for (const auto prepare :
       {Variant<T, 64, kNarrowTile>::Prepare, Variant<T, 64, kWideTile>::Prepare, Variant<T, 128, kNarrowTile>::Prepare,
        Variant<T, 128, kWideTile>::Prepare, Variant<T, 128, kWideTile, true>::Prepare,
        Variant<T, 192, kNarrowTile>::Prepare, Variant<T, 256, kNarrowTile>::Prepare}) {
    if (const cudaError_t error = prepare(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t LaunchForKeys(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream) {
  const int key_dim = arguments.shape.key_dim;
  const bool wide = arguments.value_tile == kWideTile;
  if (key_dim > 192) return Variant<T, 256, kNarrowTile>::Launch(arguments, multiprocessors, stream);
  if (key_dim > 128) return Variant<T, 192, kNarrowTile>::Launch(arguments, multiprocessors, stream);
  if (key_dim > 64) {
    if (wide && arguments.is_short != 0) {
      return Variant<T, 128, kWideTile, true>::Launch(arguments, multiprocessors, stream);
    }
    return wide ? Variant<T, 128, kWideTile>::Launch(arguments, multiprocessors, stream)
                : Variant<T, 128, kNarrowTile>::Launch(arguments, multiprocessors, stream);
  }
  return wide ? Variant<T, 64, kWideTile>::Launch(arguments, multiprocessors, stream)
              : Variant<T, 64, kNarrowTile>::Launch(arguments, multiprocessors, stream);
}

}  // namespace

bool HopperCovers(const LaunchShape& shape) {
  return !shape.high_precision && shape.chunk_size == kHopperChunk && shape.input_dtype != DataType::kFloat32 &&
         shape.key_dim % 8 == 0 && shape.value_dim % 8 == 0;
}

cudaError_t PrepareHopperRecurrence() {
  const cudaError_t error = PrepareAll<__nv_bfloat16>();
  return error != cudaSuccess ? error : PrepareAll<__half>();
}

int HopperValueTile(const LaunchShape& shape, std::int64_t sequences, int multiprocessors) {
  if (shape.key_dim > 128 || shape.value_dim <= kNarrowTile) return kNarrowTile;
  const std::int64_t wide_tiles = (shape.value_dim + kWideTile - 1) / kWideTile;
  return sequences * shape.heads * wide_tiles <= multiprocessors / 2 ? kNarrowTile : kWideTile;
}

cudaError_t LaunchHopperRecurrence(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream) {
  if (arguments.shape.input_dtype == DataType::kBFloat16) {
    return LaunchForKeys<__nv_bfloat16>(arguments, multiprocessors, stream);
  }
  return LaunchForKeys<__half>(arguments, multiprocessors, stream);
}

}  // namespace gdpcache::kernels::cuda
