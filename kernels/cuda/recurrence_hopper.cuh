#ifndef GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_CUH_
#define GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_CUH_

#include <type_traits>

#include "kernels/cuda/hopper_items.cuh"
#include "kernels/cuda/hopper_loads.cuh"
#include "kernels/cuda/hopper_narrow_products.cuh"
#include "kernels/cuda/hopper_plan.cuh"
#include "kernels/cuda/hopper_stores.cuh"
#include "kernels/cuda/hopper_wide_products.cuh"

/// One warpgroup holds a value tile of S in registers and computes. Everything that touches global memory is done by
/// other warps, which run ahead or behind through rings in shared memory:
///
///   warps 0-3   products                      warp 8   w, k, u
///   warps 4-6   states to memory              warp 9   2^(g[last] - g) and 2^g[last]
///   warp 7      v_new to memory               warp 10  initial states
///                                             warp 11  hands out items
///
/// The width of the tile is a dimension of the products along which nothing is summed, so it changes no bit.
namespace gdpcache::kernels::cuda::hopper {

/// Warps 0-3.
template <typename T, typename P>
__device__ void ComputeProducts(const Context<P>& context, int thread) {
  using Products = std::conditional_t<P::kWide, WideProducts<T, P>, NarrowProducts<T, P>>;
  Products products(context, thread);
  ForEachItem(context, thread % 32, [&](const Item& item) { products.Run(item); });
}

template <typename T, typename P>
__global__ void __launch_bounds__(kThreads, 1) Recurrence(const __grid_constant__ HopperArguments arguments) {
  extern __shared__ __align__(1024) std::byte shared[];  // as the boxes' swizzle needs it
  Context<P> context;
  context.base = shared;
  context.shared = ptx::SharedAddress(shared);
  context.arguments = &arguments;

  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = Uniform(thread / 32);
  const int rank = P::kCluster == 1 ? 0 : static_cast<int>(ptx::ClusterRank());
  if (thread == 0) context.InitBarriers();
  __syncthreads();
  if constexpr (P::kCluster > 1) ptx::SyncCluster();

  if (warp < 4) {
    ptx::RaiseRegisters<248>();
    ComputeProducts<T>(context, thread);
  } else if (warp < 8) {
    ptx::LowerRegisters<128>();
    if (warp < 4 + kWriters) {
      WriteStates(context, thread - kProductThreads);
    } else {
      WriteValues(context, lane);
    }
  } else {
    ptx::LowerRegisters<128>();
    if (warp == 8) {
      LoadChunks(context, rank, lane);
    } else if (warp == 9) {
      ComputeFactors(context, lane);
    } else if (warp == 10) {
      LoadInitialStates(context, lane);
    } else {
      HandOutItems(context, rank, lane);
    }
  }
  // Until all are done, the others may still write to this block's shared memory and arrive at its barriers.
  if constexpr (P::kCluster > 1) {
    __syncwarp();
    ptx::SyncCluster();
  }
}

}  // namespace gdpcache::kernels::cuda::hopper

#endif  // GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_CUH_
