#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_ITEMS_CUH_
#define GDPCACHE_KERNELS_CUDA_HOPPER_ITEMS_CUH_

#include "kernels/cuda/hopper_plan.cuh"

/// Items of work: a sequence, a head and a value tile. The blocks of a cluster take neighbouring tiles of one head.
namespace gdpcache::kernels::cuda::hopper {

/// The numbers of a cluster's items: first its own, then from a counter that all clusters share. The first block asks
/// for a number and tells the others.
template <typename P>
class ItemNumbers {
 public:
  __device__ __forceinline__ ItemNumbers(const Context<P>& context, int rank, int lane)
      : context_(context), clusters_(gridDim.x / P::kCluster), rank_(rank), lane_(lane) {}

  __device__ __forceinline__ std::int64_t First() const { return blockIdx.x / P::kCluster; }

  __device__ __forceinline__ std::int64_t Next() {
    const HopperArguments& arguments = *context_.arguments;
    if (!shared()) return arguments.items;
    long long number = 0;
    if (rank_ == 0) {
      if (lane_ == 0) number = clusters_ + static_cast<long long>(atomicAdd(&arguments.counters[0], 1ULL));
      number = __shfl_sync(0xffffffffU, number, 0);
    }
    if constexpr (P::kCluster > 1) {
      const std::uint32_t full = context_.number_full(position_.slot);
      if (rank_ == 0) {
        ptx::Wait(context_.number_empty(position_.slot), position_.parity ^ 1);
        if (lane_ < P::kCluster) ptx::StoreAt(context_.number(position_.slot), number, full, lane_);
      }
      if (lane_ == 0) ptx::ArriveExpectBytes(full, 8);
      ptx::Wait(full, position_.parity);
      number = *context_.template at<volatile long long>(context_.number(position_.slot));
      __syncwarp();
      if (lane_ == 0) ptx::ArriveAt(context_.number_empty(position_.slot), 0);
      position_.Advance(kItemSlots);
    }
    return number;
  }

  /// When there are no more: the last cluster leaves the counters as it found them.
  __device__ __forceinline__ void Finish() const {
    unsigned long long* counters = context_.arguments->counters;
    if (shared() && rank_ == 0 && lane_ == 0 && atomicAdd(&counters[1], 1ULL) == clusters_ - 1) {
      counters[0] = 0;
      counters[1] = 0;
    }
  }

 private:
  __device__ __forceinline__ bool shared() const { return context_.arguments->items > clusters_; }

  const Context<P>& context_;
  unsigned clusters_;
  int rank_;
  int lane_;
  RingPosition position_;
};

/// Warp 11.
template <typename P>
__device__ void HandOutItems(const Context<P>& context, int rank, int lane) {
  const HopperArguments& arguments = *context.arguments;
  const std::int64_t per_head = arguments.tiling.value_tiles / P::kCluster;
  const std::int64_t per_sequence = arguments.shape.heads * per_head;
  RingPosition position;
  ItemNumbers<P> numbers(context, rank, lane);
  std::int64_t number = numbers.First();
  while (true) {
    ptx::Wait(context.item_empty(position.slot), position.parity ^ 1);
    Item* item = context.item(position.slot);
    if (number < arguments.items) {
      const std::int64_t sequence = number / per_sequence;
      const std::int64_t rest = number - sequence * per_sequence;
      const auto* source = reinterpret_cast<const uint4*>(context.sequences() + sequence);
      if (lane < static_cast<int>(sizeof(SequenceDescriptor) / 16)) {
        reinterpret_cast<uint4*>(&item->sequence)[lane] = source[lane];
      }
      if (lane == 0) {
        item->head = rest / per_head;
        item->column = static_cast<std::int32_t>(rest % per_head * P::kCluster + rank) * P::kTile;
        item->valid = 1;
      }
    } else if (lane == 0) {
      item->valid = 0;
    }
    ArriveAsWarp(context.item_full(position.slot), lane);
    if (number >= arguments.items) break;
    position.Advance(kItemSlots);
    number = numbers.Next();
  }
  numbers.Finish();
}

/// Calls `work(item)` for each item; the calling warp reads the item until it returns.
template <typename P, typename Work>
__device__ __forceinline__ void ForEachItem(const Context<P>& context, int lane, Work work) {
  RingPosition position;
  while (true) {
    ptx::Wait(context.item_full(position.slot), position.parity);
    const Item& item = *context.item(position.slot);
    if (Uniform(item.valid) == 0) return;
    work(item);
    ArriveAsWarp(context.item_empty(position.slot), lane);
    position.Advance(kItemSlots);
  }
}

}  // namespace gdpcache::kernels::cuda::hopper

#endif  // GDPCACHE_KERNELS_CUDA_HOPPER_ITEMS_CUH_
