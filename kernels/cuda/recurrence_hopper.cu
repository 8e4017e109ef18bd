#include "kernels/cuda/recurrence_hopper.h"

#include <algorithm>

#include "kernels/cuda/recurrence_hopper.cuh"

namespace gdpcache::kernels::cuda {
namespace {

template <typename T, int KP>
cudaError_t Launch(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream) {
  constexpr int kShared = hopper::Plan<KP>::kAllocation;
  static_assert(kShared <= 227 * 1024);
  if (const cudaError_t error = cudaFuncSetAttribute(hopper::Recurrence<T, KP>,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
      error != cudaSuccess) {
    return error;
  }
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(arguments.items, multiprocessors));
  hopper::Recurrence<T, KP><<<blocks, hopper::kThreads, kShared, stream>>>(arguments);
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchForKeys(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream) {
  const int key_dim = arguments.shape.key_dim;
  if (key_dim <= 64) return Launch<T, 64>(arguments, multiprocessors, stream);
  if (key_dim <= 128) return Launch<T, 128>(arguments, multiprocessors, stream);
  if (key_dim <= 192) return Launch<T, 192>(arguments, multiprocessors, stream);
  return Launch<T, 256>(arguments, multiprocessors, stream);
}

}  // namespace

bool HopperCovers(const LaunchShape& shape) {
  return shape.chunk_size == kHopperChunk && shape.input_dtype != DataType::kFloat32 && shape.key_dim % 8 == 0 &&
         shape.value_dim % 8 == 0;
}

cudaError_t LaunchHopperRecurrence(const HopperArguments& arguments, int multiprocessors, cudaStream_t stream) {
  if (arguments.shape.input_dtype == DataType::kBFloat16) {
    return LaunchForKeys<__nv_bfloat16>(arguments, multiprocessors, stream);
  }
  return LaunchForKeys<__half>(arguments, multiprocessors, stream);
}

}  // namespace gdpcache::kernels::cuda
