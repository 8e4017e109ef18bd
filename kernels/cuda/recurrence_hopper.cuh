#ifndef GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_CUH_
#define GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/hopper_ptx.cuh"
#include "kernels/cuda/recurrence_hopper.h"

/// One warpgroup holds S^T [64 value columns, K] in registers and multiplies with warpgroup products whose left operand
/// comes from registers: x^T = u^T - S^T w^T, then S^T = S^T 2^g + x^T k. The layout of an accumulator, packed in pairs,
/// is that of a left operand, so S and x never leave the registers; w and k are right operands as stored. Everything
/// that touches global memory is done by other warps, which run ahead or behind through rings in shared memory:
///
///   warps 0-3   products                      warp 8   w, k, u by bulk tensor copies
///   warps 4-7   states and v_new to memory    warp 9   2^(g[last] - g) and 2^g[last]
///                                             warp 10  initial states
///                                             warp 11  hands out (sequence, head, value tile) items
namespace gdpcache::kernels::cuda::hopper {

inline constexpr int kTile = kHopperValueTile;
inline constexpr int kChunk = kHopperChunk;
inline constexpr int kThreads = 384;
inline constexpr int kItemSlots = 4;
inline constexpr int kValueSlots = 2;
inline constexpr int kBoxBytes = kChunk * 128;  // 64 rows of 64 elements

// Rows of staged states and values are padded so that the transposing accesses of the product warps meet no bank twice.
inline constexpr int kStatePitch = kTile + 4;      // floats
inline constexpr int kStatePitch16 = kTile + 8;    // 16-bit elements
inline constexpr int kValuePitch = kTile + 8;      // 16-bit elements

struct Item {
  SequenceDescriptor sequence;
  std::int64_t head;
  std::int32_t column;  // first value column
  std::int32_t valid;   // 0: no more items
};

/// How the shared memory is divided for keys padded to KP.
template <int KP>
struct Plan {
  static constexpr int kGroups = KP / 64;
  static constexpr int kStages = KP == 64 ? 5 : KP == 128 ? 3 : 2;
  static constexpr bool kSharedState = KP > 192;  // one buffer serves the states that come and those that go

  static constexpr int kStateBytes = KP * kStatePitch * 4;
  static constexpr int kStageBytes = (2 * kGroups + 1) * kBoxBytes;
  static constexpr int kFactorFloats = kChunk + 4;  // a factor per token, then the chunk's decay

  static constexpr int kStateOffset = kStages * kStageBytes;
  static constexpr int kIncomingOffset = kSharedState ? kStateOffset : kStateOffset + kStateBytes;
  static constexpr int kValueOffset = kIncomingOffset + kStateBytes;
  static constexpr int kValueBuffers = KP > 128 ? 1 : kValueSlots;
  static constexpr int kFactorOffset = kValueOffset + kValueBuffers * kChunk * kValuePitch * 2;
  static constexpr int kItemOffset = kFactorOffset + kStages * kFactorFloats * 4;
  static constexpr int kBarrierOffset = kItemOffset + kItemSlots * static_cast<int>(sizeof(Item));
  static constexpr int kBarriers = 4 * kStages + 2 * kItemSlots + 2 * kValueBuffers + 5;
  static constexpr int kBytes = kBarrierOffset + kBarriers * 8;
  static constexpr int kAllocation = kBytes + 1024;  // room to align the first box
};

/// Everything a role needs to find its way: pointers into shared memory and the launch's arguments.
template <int KP>
struct Context {
  using P = Plan<KP>;
  std::byte* base;
  const HopperArguments* arguments;
  const SequenceDescriptor* sequences;
  const BoundaryDescriptor* boundaries;
  const CUtensorMap* maps;

  __device__ std::byte* w(int stage) const { return base + stage * P::kStageBytes; }
  __device__ std::byte* u(int stage) const { return w(stage) + P::kGroups * kBoxBytes; }
  __device__ std::byte* k(int stage) const { return u(stage) + kBoxBytes; }
  __device__ float* outgoing() const { return reinterpret_cast<float*>(base + P::kStateOffset); }
  __device__ std::byte* incoming() const { return base + P::kIncomingOffset; }
  __device__ std::byte* values(int slot) const { return base + P::kValueOffset + slot * kChunk * kValuePitch * 2; }
  __device__ float* factors(int stage) const {
    return reinterpret_cast<float*>(base + P::kFactorOffset) + stage * P::kFactorFloats;
  }
  __device__ Item* item(int slot) const { return reinterpret_cast<Item*>(base + P::kItemOffset) + slot; }

  __device__ std::uint64_t* barriers() const { return reinterpret_cast<std::uint64_t*>(base + P::kBarrierOffset); }
  __device__ std::uint64_t* w_full(int stage) const { return barriers() + stage; }
  __device__ std::uint64_t* w_empty(int stage) const { return barriers() + P::kStages + stage; }
  __device__ std::uint64_t* k_full(int stage) const { return barriers() + 2 * P::kStages + stage; }
  __device__ std::uint64_t* k_empty(int stage) const { return barriers() + 3 * P::kStages + stage; }
  __device__ std::uint64_t* item_full(int slot) const { return barriers() + 4 * P::kStages + slot; }
  __device__ std::uint64_t* item_empty(int slot) const { return barriers() + 4 * P::kStages + kItemSlots + slot; }
  __device__ std::uint64_t* value_full(int slot) const { return rest() + slot; }
  __device__ std::uint64_t* value_empty(int slot) const { return rest() + P::kValueBuffers + slot; }
  __device__ std::uint64_t* outgoing_full() const { return rest() + 2 * P::kValueBuffers; }
  __device__ std::uint64_t* outgoing_empty() const { return rest() + 2 * P::kValueBuffers + 1; }
  __device__ std::uint64_t* incoming_full() const { return rest() + 2 * P::kValueBuffers + 2; }
  __device__ std::uint64_t* incoming_empty() const { return rest() + 2 * P::kValueBuffers + 3; }
  __device__ std::uint64_t* item_written() const { return rest() + 2 * P::kValueBuffers + 4; }

 private:
  __device__ std::uint64_t* rest() const { return barriers() + 4 * P::kStages + 2 * kItemSlots; }
};

/// A place in a ring of N buffers. The consumer of a buffer waits for Parity(); its producer for the opposite, which a
/// fresh barrier passes at once.
template <int N>
struct RingPosition {
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++slot == N) {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// Walks a sequence's boundaries and says which are wanted.
class BoundaryCursor {
 public:
  __device__ __forceinline__ BoundaryCursor(const SequenceDescriptor& sequence, const BoundaryDescriptor* boundaries)
      : next_(boundaries + sequence.first_boundary),
        end_(next_ + sequence.boundary_count),
        all_(sequence.all_boundaries.data != nullptr) {
    Peek();
  }
  __device__ __forceinline__ bool Wants(std::int64_t boundary) const { return all_ || upcoming_ == boundary; }

  /// The next single destination of `boundary`, or nullptr.
  __device__ __forceinline__ const BoundaryDescriptor* Take(std::int64_t boundary) {
    if (upcoming_ != boundary) return nullptr;
    const BoundaryDescriptor* taken = next_++;
    Peek();
    return taken;
  }

 private:
  __device__ __forceinline__ void Peek() { upcoming_ = next_ == end_ ? -1 : next_->boundary; }

  const BoundaryDescriptor* next_;
  const BoundaryDescriptor* end_;
  std::int64_t upcoming_ = -1;
  bool all_;
};

/// `value`, the same in all lanes, in a form the compiler knows to be so: warpgroup products must not appear to diverge.
__device__ __forceinline__ int Uniform(int value) { return __shfl_sync(0xffffffffU, value, 0); }

__device__ __forceinline__ int Chunks(const SequenceDescriptor& sequence) {
  return Uniform(static_cast<int>((sequence.length + kChunk - 1) / kChunk));
}

/// Warp 11: the first item of a block is its own number; the others come from a counter, longest sequences first.
template <int KP>
__device__ void HandOutItems(const Context<KP>& context, int lane) {
  const HopperArguments& arguments = *context.arguments;
  const std::int64_t per_sequence = arguments.shape.heads * arguments.value_tiles;
  RingPosition<kItemSlots> position;
  std::int64_t number = blockIdx.x;
  while (true) {
    ptx::Wait(context.item_empty(position.slot), position.parity ^ 1);
    Item* item = context.item(position.slot);
    if (number < arguments.items) {
      const std::int64_t sequence = number / per_sequence;
      const std::int64_t rest = number - sequence * per_sequence;
      const auto* source = reinterpret_cast<const uint4*>(context.sequences + sequence);
      if (lane < static_cast<int>(sizeof(SequenceDescriptor) / 16)) {
        reinterpret_cast<uint4*>(&item->sequence)[lane] = source[lane];
      }
      if (lane == 0) {
        item->head = rest / arguments.value_tiles;
        item->column = static_cast<std::int32_t>(rest % arguments.value_tiles) * kTile;
        item->valid = 1;
      }
    } else if (lane == 0) {
      item->valid = 0;
    }
    __syncwarp();
    if (lane == 0) ptx::Arrive(context.item_full(position.slot));
    if (number >= arguments.items) break;
    position.Advance();
    if (arguments.items <= gridDim.x) {
      number = arguments.items;
    } else {
      if (lane == 0) number = gridDim.x + static_cast<std::int64_t>(atomicAdd(&arguments.counters[0], 1ULL));
      number = __shfl_sync(0xffffffffU, number, 0);
    }
  }
  if (arguments.items > gridDim.x && lane == 0) {
    if (atomicAdd(&arguments.counters[1], 1ULL) == gridDim.x - 1) {  // the last block leaves the counters as it found them
      arguments.counters[0] = 0;
      arguments.counters[1] = 0;
    }
  }
}

/// Calls `work(item)` for each item; the calling warp reads the item until it returns.
template <int KP, typename Work>
__device__ __forceinline__ void ForEachItem(const Context<KP>& context, int lane, Work work) {
  RingPosition<kItemSlots> position;
  while (true) {
    ptx::Wait(context.item_full(position.slot), position.parity);
    const Item& item = *context.item(position.slot);
    if (Uniform(item.valid) == 0) return;
    work(item);
    __syncwarp();
    if (lane == 0) ptx::Arrive(context.item_empty(position.slot));
    position.Advance();
  }
}

/// Copies a chunk's rows of one head into boxes as the tensor copies would, for operands those cannot address.
__device__ inline void LoadRows(std::byte* boxes, int groups, const void* tensor, std::int64_t row, int rows,
                                std::int64_t heads, std::int64_t head, int first_column, int width, int lane) {
  const auto* source = static_cast<const std::uint16_t*>(tensor);
  const int columns = groups * 64;
  for (int i = lane; i < kChunk * columns; i += 32) {
    const int r = i / columns;
    const int c = i - r * columns;
    std::uint16_t value = 0;
    if (r < rows && first_column + c < width) value = source[((row + r) * heads + head) * width + first_column + c];
    const int piece = ((c % 64) / 8) ^ (r % 8);
    *reinterpret_cast<std::uint16_t*>(boxes + (c / 64) * kBoxBytes + r * 128 + piece * 16 + (c % 8) * 2) = value;
  }
}

/// Warp 8.
template <int KP>
__device__ void LoadChunks(const Context<KP>& context, int lane) {
  using P = Plan<KP>;
  const HopperArguments& arguments = *context.arguments;
  const LaunchShape& shape = arguments.shape;
  RingPosition<P::kStages> position;
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    if (chunks == 0) return;
    const bool mapped = sequence.map_index >= 0;
    const CUtensorMap* maps = context.maps + (mapped ? sequence.map_index : 0);
    if (mapped && arguments.maps_uploaded != 0 && lane < 3) ptx::AcquireTensorMap(maps + lane);
    __syncwarp();
    const int head = static_cast<int>(item.head);
    for (int c = 0; c < chunks; ++c) {
      const std::int64_t row = static_cast<std::int64_t>(c) * kChunk;
      const int stage = position.slot;
      if (mapped) {
        if (lane == 0) {
          ptx::Wait(context.w_empty(stage), position.parity ^ 1);
          ptx::ArriveExpectBytes(context.w_full(stage), (P::kGroups + 1) * kBoxBytes);
          ptx::LoadBox(context.u(stage), maps + 2, context.w_full(stage), item.column, head, static_cast<int>(row));
          for (int group = 0; group < P::kGroups; ++group) {
            ptx::LoadBox(context.w(stage) + group * kBoxBytes, maps + 1, context.w_full(stage), group * 64, head,
                         static_cast<int>(row));
          }
          ptx::Wait(context.k_empty(stage), position.parity ^ 1);
          ptx::ArriveExpectBytes(context.k_full(stage), P::kGroups * kBoxBytes);
          for (int group = 0; group < P::kGroups; ++group) {
            ptx::LoadBox(context.k(stage) + group * kBoxBytes, maps, context.k_full(stage), group * 64, head,
                         static_cast<int>(row));
          }
        }
      } else {
        const int rows = static_cast<int>(min(static_cast<std::int64_t>(kChunk), sequence.length - row));
        ptx::Wait(context.w_empty(stage), position.parity ^ 1);
        LoadRows(context.u(stage), 1, sequence.u, row, rows, shape.heads, item.head, item.column, shape.value_dim, lane);
        LoadRows(context.w(stage), P::kGroups, sequence.w, row, rows, shape.heads, item.head, 0, shape.key_dim, lane);
        ptx::FenceAsyncProxy();
        __syncwarp();
        if (lane == 0) ptx::Arrive(context.w_full(stage));
        ptx::Wait(context.k_empty(stage), position.parity ^ 1);
        LoadRows(context.k(stage), P::kGroups, sequence.k, row, rows, shape.heads, item.head, 0, shape.key_dim, lane);
        ptx::FenceAsyncProxy();
        __syncwarp();
        if (lane == 0) ptx::Arrive(context.k_full(stage));
      }
      position.Advance();
    }
  });
}

/// Warp 9: two tokens a lane; the loads of the next chunks are in flight while a chunk's factors are formed.
template <int KP>
__device__ void ComputeFactors(const Context<KP>& context, int lane) {
  using P = Plan<KP>;
  const std::int64_t heads = context.arguments->shape.heads;
  RingPosition<P::kStages> position;
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    const float* g = sequence.g == nullptr ? nullptr : sequence.g + item.head;
    const auto load = [&](std::int64_t row) { return g != nullptr && row < sequence.length ? g[row * heads] : 0.0F; };
    float low[2] = {load(lane), load(kChunk + lane)};
    float high[2] = {load(lane + 32), load(kChunk + lane + 32)};
    for (int c = 0; c < chunks; ++c) {
      const float g_low = low[0];
      const float g_high = high[0];
      low[0] = low[1];
      high[0] = high[1];
      low[1] = load((c + std::int64_t{2}) * kChunk + lane);
      high[1] = load((c + std::int64_t{2}) * kChunk + lane + 32);
      const int last = static_cast<int>(min(static_cast<std::int64_t>(kChunk), sequence.length - static_cast<std::int64_t>(c) * kChunk)) - 1;
      const float g_last = __shfl_sync(0xffffffffU, last < 32 ? g_low : g_high, last & 31);
      ptx::Wait(context.k_empty(position.slot), position.parity ^ 1);
      float* factors = context.factors(position.slot);
      factors[lane] = exp2f(g_last - g_low);
      factors[lane + 32] = exp2f(g_last - g_high);
      if (lane == 0) factors[kChunk] = exp2f(g_last);
      __syncwarp();
      if (lane == 0) ptx::Arrive(context.k_full(position.slot));
      position.Advance();
    }
  });
}

/// Warp 10.
template <int KP>
__device__ void LoadInitialStates(const Context<KP>& context, int lane) {
  const LaunchShape& shape = context.arguments->shape;
  std::uint32_t parity = 0;
  ForEachItem(context, lane, [&](const Item& item) {
    ptx::Wait(context.incoming_empty(), parity ^ 1);
    if constexpr (Plan<KP>::kSharedState) ptx::Wait(context.item_written(), parity ^ 1);
    const StateReference& state = item.sequence.initial_state;
    if (state.data != nullptr) {
      const int columns = min(kTile, shape.value_dim - item.column);
      const int element = state.dtype == DataType::kFloat32 ? 4 : 2;
      const int pitch = state.dtype == DataType::kFloat32 ? kStatePitch * 4 : kStatePitch16 * 2;
      const auto* source = static_cast<const std::byte*>(state.data) +
                           (item.head * state.head_stride + item.column) * static_cast<std::int64_t>(element);
      const std::int64_t row_bytes = static_cast<std::int64_t>(shape.value_dim) * element;
      const int piece_elements = 16 / element;
      if (reinterpret_cast<std::uintptr_t>(source) % 16 == 0 && row_bytes % 16 == 0) {
        const int pieces = columns / piece_elements;
        if (pieces == kTile / piece_elements) {  // whole tiles: the divisions become shifts
          const int shift = element == 4 ? 4 : 3;
#pragma unroll 8
          for (int i = lane; i < (shape.key_dim << shift); i += 32) {
            const int row = i >> shift;
            const int piece = i & ((1 << shift) - 1);
            ptx::CopyAsync16(context.incoming() + row * pitch + piece * 16, source + row * row_bytes + piece * 16);
          }
        } else {
          for (int i = lane; i < shape.key_dim * pieces; i += 32) {
            const int row = i / pieces;
            const int piece = i - row * pieces;
            ptx::CopyAsync16(context.incoming() + row * pitch + piece * 16, source + row * row_bytes + piece * 16);
          }
        }
        ptx::ArriveAfterCopies(context.incoming_full());
        parity ^= 1;
        return;
      }
      for (int i = lane; i < shape.key_dim * columns; i += 32) {
        const int row = i / columns;
        const int column = i - row * columns;
        std::byte* to = context.incoming() + row * pitch + column * element;
        const std::byte* from = source + row * row_bytes + column * element;
        if (element == 4) {
          *reinterpret_cast<float*>(to) = *reinterpret_cast<const float*>(from);
        } else {
          *reinterpret_cast<std::uint16_t*>(to) = *reinterpret_cast<const std::uint16_t*>(from);
        }
      }
    }
    ptx::Arrive(context.incoming_full());
    parity ^= 1;
  });
}

/// Two neighbouring registers of 16-bit elements, rounded from staged floats.
template <typename T>
__device__ __forceinline__ uint4 PackEight(const float* source) {
  const float4 a = *reinterpret_cast<const float4*>(source);
  const float4 b = *reinterpret_cast<const float4*>(source + 4);
  return {Pack<T>(a.x, a.y), Pack<T>(a.z, a.w), Pack<T>(b.x, b.y), Pack<T>(b.z, b.w)};
}

/// The staged state to `destination`, by the 128 threads of warps 4-7.
template <int KP>
__device__ __forceinline__ void WriteState(const float* staged, void* data, std::int64_t offset, DataType dtype,
                                           int key_dim, int value_dim, int columns, int thread) {
  const int element = dtype == DataType::kFloat32 ? 4 : 2;
  std::byte* destination = static_cast<std::byte*>(data) + offset * element;
  const std::int64_t row_bytes = static_cast<std::int64_t>(value_dim) * element;
  const bool aligned = reinterpret_cast<std::uintptr_t>(destination) % 16 == 0 && row_bytes % 16 == 0;
  if (aligned && dtype == DataType::kFloat32) {
    const int piece = thread % 16;
    if (piece * 4 >= columns) return;
    const int first = thread / 16;
    const float* from = staged + first * kStatePitch + piece * 4;
    std::byte* to = destination + first * row_bytes + piece * 16;
#pragma unroll 8
    for (int row = first; row < key_dim; row += 8) {
      *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
      from += 8 * kStatePitch;
      to += 8 * row_bytes;
    }
  } else if (aligned) {
    const int piece = thread % 8;
    if (piece * 8 >= columns) return;
    const int first = thread / 8;
    const float* from = staged + first * kStatePitch + piece * 8;
    std::byte* to = destination + first * row_bytes + piece * 16;
    const bool is_bfloat16 = dtype == DataType::kBFloat16;
#pragma unroll 4
    for (int row = first; row < key_dim; row += 16) {
      *reinterpret_cast<uint4*>(to) = is_bfloat16 ? PackEight<__nv_bfloat16>(from) : PackEight<__half>(from);
      from += 16 * kStatePitch;
      to += 16 * row_bytes;
    }
  } else {
    for (int i = thread; i < key_dim * columns; i += 128) {
      const int row = i / columns;
      const int column = i - row * columns;
      StoreElement(destination, static_cast<std::int64_t>(row) * value_dim + column, dtype,
                   staged[row * kStatePitch + column]);
    }
  }
}

/// Warps 4-7.
template <int KP>
__device__ void WriteResults(const Context<KP>& context, int thread) {
  using P = Plan<KP>;
  const LaunchShape& shape = context.arguments->shape;
  const int lane = thread % 32;
  std::uint32_t outgoing_parity = 0;
  RingPosition<P::kValueBuffers> value;
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    const int columns = min(kTile, shape.value_dim - item.column);
    const auto write = [&](void* data, std::int64_t head_stride, std::int64_t skip, DataType dtype) {
      WriteState<KP>(context.outgoing(), data, skip + item.head * head_stride + item.column, dtype, shape.key_dim,
                     shape.value_dim, columns, thread);
    };
    const auto release = [&] {
      __syncwarp();
      if (lane == 0) ptx::Arrive(context.outgoing_empty());
      outgoing_parity ^= 1;
    };
    BoundaryCursor cursor(sequence, context.boundaries);
    std::int64_t boundary = 0;
    std::int64_t until_boundary = 0;
    for (int c = 0; c < chunks; ++c) {
      if (until_boundary == 0) {
        if (cursor.Wants(boundary)) {
          ptx::Wait(context.outgoing_full(), outgoing_parity);
          const StateReference& all = sequence.all_boundaries;
          if (all.data != nullptr) {
            const std::int64_t head_elements = static_cast<std::int64_t>(shape.key_dim) * shape.value_dim;
            write(all.data, head_elements, boundary * shape.heads * head_elements, all.dtype);
          }
          while (const BoundaryDescriptor* single = cursor.Take(boundary)) {
            write(single->destination.data, single->destination.head_stride, 0, single->destination.dtype);
          }
          release();
        }
        ++boundary;
        until_boundary = shape.num_householder;
      }
      --until_boundary;
      if (sequence.v_new != nullptr) {
        const int rows = static_cast<int>(min(static_cast<std::int64_t>(kChunk), sequence.length - static_cast<std::int64_t>(c) * kChunk));
        auto* destination = static_cast<std::uint16_t*>(sequence.v_new) +
                            (static_cast<std::int64_t>(c) * kChunk * shape.heads + item.head) * shape.value_dim + item.column;
        const std::int64_t row_stride = shape.heads * shape.value_dim;
        ptx::Wait(context.value_full(value.slot), value.parity);
        const auto* staged = reinterpret_cast<const std::uint16_t*>(context.values(value.slot));
        if (reinterpret_cast<std::uintptr_t>(destination) % 16 == 0) {
          const int piece = thread % 8;
#pragma unroll
          for (int i = 0; i < kChunk / 16; ++i) {
            const int row = thread / 8 + i * 16;
            if (row < rows && piece * 8 < columns) {
              *reinterpret_cast<uint4*>(destination + row * row_stride + piece * 8) =
                  *reinterpret_cast<const uint4*>(staged + row * kValuePitch + piece * 8);
            }
          }
        } else {
          for (int i = thread; i < rows * columns; i += 128) {
            const int row = i / columns;
            const int column = i - row * columns;
            destination[row * row_stride + column] = staged[row * kValuePitch + column];
          }
        }
        __syncwarp();
        if (lane == 0) ptx::Arrive(context.value_empty(value.slot));
        value.Advance();
      }
    }
    if (sequence.slot.data != nullptr || sequence.final_state.data != nullptr) {
      ptx::Wait(context.outgoing_full(), outgoing_parity);
      const StateReference& slot = sequence.slot;
      const StateReference& final_state = sequence.final_state;
      if (slot.data != nullptr) write(slot.data, slot.head_stride, 0, slot.dtype);
      if (final_state.data != nullptr) write(final_state.data, final_state.head_stride, 0, final_state.dtype);
      release();
    }
    if constexpr (P::kSharedState) {
      __syncwarp();
      if (lane == 0) ptx::Arrive(context.item_written());
    }
  });
}

/// S^T of one thread: per group of 64 keys, element 4j + 2h + b is value column 16 warp + lane/4 + 8h and key
/// 8j + 2 (lane % 4) + b.
template <int KP>
using StateFragment = float[Plan<KP>::kGroups][32];

template <int KP>
__device__ __forceinline__ void StageState(float* staged, const StateFragment<KP>& s, int column, int pair) {
  float* base = staged + 2 * pair * kStatePitch + column;
#pragma unroll
  for (int group = 0; group < Plan<KP>::kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = group * 64 + (i / 4) * 8 + i % 2;
      base[key * kStatePitch + ((i / 2) % 2) * 8] = s[group][i];
    }
  }
}

/// The left operand of four products: 64 keys of S^T.
template <typename T>
__device__ __forceinline__ void PackKeys(std::uint32_t (&left)[4][4], const float (&s)[32]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left[step][i] = Pack<T>(s[step * 8 + i * 2], s[step * 8 + i * 2 + 1]);
      asm volatile("" : "+r"(left[step][i])::"memory");
    }
  }
}

template <int KP, typename Read>
__device__ __forceinline__ void ReadState(StateFragment<KP>& s, int column, int pair, int key_dim, int columns,
                                          Read read) {
#pragma unroll
  for (int group = 0; group < Plan<KP>::kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = group * 64 + (i / 4) * 8 + 2 * pair + i % 2;
      const int v = column + ((i / 2) % 2) * 8;
      s[group][i] = key < key_dim && v < columns ? read(key, v) : 0.0F;
    }
  }
}

/// Warps 0-3.
template <typename T, int KP>
__device__ void ComputeProducts(const Context<KP>& context, int thread) {
  using P = Plan<KP>;
  const LaunchShape& shape = context.arguments->shape;
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int pair = lane % 4;
  const int column = warp * 16 + lane / 4;

  // Where this lane reads u and writes v_new, as rows of 8x8 matrices: tokens by lane, columns in pieces of 16 bytes.
  const int matrix_row = (lane / 16) * 8 + lane % 8;
  const int matrix_piece = warp * 2 + (lane / 8) % 2;
  const std::uint32_t u_offset = matrix_row * 128 + ((matrix_piece ^ (matrix_row % 8)) * 16);
  const std::uint32_t value_offset = matrix_row * kValuePitch * 2 + matrix_piece * 16;

  const int num_householder = Uniform(static_cast<int>(shape.num_householder));
  StateFragment<KP> s;
  float x[32];
  RingPosition<P::kStages> position;
  RingPosition<P::kValueBuffers> value;
  std::uint32_t incoming_parity = 0;
  std::uint32_t outgoing_parity = 0;

  const auto arrive = [&](std::uint64_t* barrier) {
    __syncwarp();
    if (lane == 0) ptx::Arrive(barrier);
  };
  const auto stage_state = [&] {
    ptx::Wait(context.outgoing_empty(), outgoing_parity ^ 1);
    StageState<KP>(context.outgoing(), s, column, pair);
    arrive(context.outgoing_full());
    outgoing_parity ^= 1;
  };
  const auto load_u = [&] {
    ptx::Wait(context.w_full(position.slot), position.parity);
    const std::uint32_t address = ptx::SharedAddress(context.u(position.slot)) + u_offset;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t fragment[4];
      ptx::LoadTransposed(fragment, address + i * 16 * 128);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 both = Unpack<T>(fragment[j]);
        x[i * 8 + j * 2] = both.x;
        x[i * 8 + j * 2 + 1] = both.y;
      }
    }
  };

  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    const bool wants_values = Uniform(sequence.v_new != nullptr) != 0;
    BoundaryCursor cursor(sequence, context.boundaries);
    std::int64_t boundary = 0;
    int until_boundary = 0;

    if (chunks > 0) load_u();
    ptx::Wait(context.incoming_full(), incoming_parity);
    incoming_parity ^= 1;
    {
      const StateReference& state = sequence.initial_state;
      const std::byte* incoming = context.incoming();
      const int columns = shape.value_dim - item.column;
      const int key_dim = state.data == nullptr ? 0 : shape.key_dim;
      if (state.dtype == DataType::kFloat32) {
        ReadState<KP>(s, column, pair, key_dim, columns, [&](int key, int v) {
          return reinterpret_cast<const float*>(incoming)[key * kStatePitch + v];
        });
      } else if (state.dtype == DataType::kBFloat16) {
        ReadState<KP>(s, column, pair, key_dim, columns, [&](int key, int v) {
          return ToFloat(reinterpret_cast<const __nv_bfloat16*>(incoming)[key * kStatePitch16 + v]);
        });
      } else {
        ReadState<KP>(s, column, pair, key_dim, columns, [&](int key, int v) {
          return ToFloat(reinterpret_cast<const __half*>(incoming)[key * kStatePitch16 + v]);
        });
      }
    }
    if constexpr (P::kSharedState) asm volatile("bar.sync 1, 128;" ::: "memory");
    arrive(context.incoming_empty());

    for (int c = 0; c < chunks; ++c) {
      bool wants_boundary = false;
      if (until_boundary == 0) {
        wants_boundary = cursor.Wants(boundary);
        while (cursor.Take(boundary) != nullptr) {
        }
        ++boundary;
        until_boundary = num_householder;
      }
      --until_boundary;
      wants_boundary = Uniform(wants_boundary) != 0;

      // x^T = u^T - S^T w^T, at most 128 keys of the left operand in registers at a time.
      constexpr int kGroupsInFlight = P::kGroups < 3 ? P::kGroups : 2;
      const std::uint64_t w_operand = ptx::OperandDescriptor(ptx::SharedAddress(context.w(position.slot)));
#pragma unroll
      for (int first = 0; first < P::kGroups; first += kGroupsInFlight) {
        std::uint32_t left[kGroupsInFlight][4][4];
#pragma unroll
        for (int group = 0; group < kGroupsInFlight && first + group < P::kGroups; ++group) PackKeys<T>(left[group], s[first + group]);
        if (first == 0) {
          ptx::WaitForProducts();  // none is in flight; lets the compiler see that S may be read during these
        }
        ptx::PinRegisters(x);
        ptx::ProductFence();
#pragma unroll
        for (int group = 0; group < kGroupsInFlight && first + group < P::kGroups; ++group) {
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            ptx::SubtractProduct<T>(x, left[group][step],
                                    w_operand + (first + group) * (kBoxBytes >> 4) + step * (32 >> 4));
          }
        }
        ptx::CommitProducts();
        if (first + kGroupsInFlight < P::kGroups) {
          ptx::WaitForProducts();
          ptx::PinRegisters(x);
        }
      }

      // In the shadow of the first product: the boundary leaves, then S decays.
      if (wants_boundary) stage_state();
      ptx::Wait(context.k_full(position.slot), position.parity);
      const float* factors = context.factors(position.slot);
      const float decay = factors[kChunk];
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
        for (int i = 0; i < 32; ++i) s[group][i] *= decay;
      }
      float2 factor[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) factor[j] = *reinterpret_cast<const float2*>(factors + j * 8 + pair * 2);

      ptx::WaitForProducts();
      ptx::PinRegisters(x);
      arrive(context.w_empty(position.slot));

      // S^T += x^T k, 16 tokens at a time.
      const std::uint64_t k_operand = ptx::OperandDescriptor(ptx::SharedAddress(context.k(position.slot)));
      std::uint32_t v_new[4][4];
      std::uint32_t left[4][4];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float low = x[step * 8 + i * 2];
          const float high = x[step * 8 + i * 2 + 1];
          const float2 scale = factor[step * 2 + i / 2];
          v_new[step][i] = Pack<T>(low, high);
          left[step][i] = Pack<T>(low * scale.x, high * scale.y);
          asm volatile("" : "+r"(left[step][i])::"memory");
        }
      }
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) ptx::PinRegisters(s[group]);
      ptx::ProductFence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int group = 0; group < P::kGroups; ++group) {
          ptx::AddProduct<T>(s[group], left[step], k_operand + group * (kBoxBytes >> 4) + step * (16 * 128 >> 4));
        }
      }
      ptx::CommitProducts();

      // In the shadow of the second product: v_new leaves, the next u arrives.
      if (wants_values) {
        ptx::Wait(context.value_empty(value.slot), value.parity ^ 1);
        const std::uint32_t address = ptx::SharedAddress(context.values(value.slot)) + value_offset;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          ptx::StoreTransposed(address + i * 16 * kValuePitch * 2, v_new[i][0], v_new[i][1], v_new[i][2], v_new[i][3]);
        }
        arrive(context.value_full(value.slot));
        value.Advance();
      }
      const int finished = position.slot;
      position.Advance();
      if (c + 1 < chunks) load_u();
      ptx::WaitForProducts();
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) ptx::PinRegisters(s[group]);
      arrive(context.k_empty(finished));
    }
    if (sequence.slot.data != nullptr || sequence.final_state.data != nullptr) stage_state();
  });
}

template <typename T, int KP>
__global__ void __launch_bounds__(kThreads, 1) Recurrence(const __grid_constant__ HopperArguments arguments) {
  using P = Plan<KP>;
  extern __shared__ std::byte shared[];
  Context<KP> context;
  context.base = shared + (1024 - ptx::SharedAddress(shared) % 1024) % 1024;
  context.arguments = &arguments;
  const std::byte* block = arguments.uploaded_block != nullptr ? arguments.uploaded_block : arguments.inline_block;
  context.maps = reinterpret_cast<const CUtensorMap*>(block);
  context.sequences = reinterpret_cast<const SequenceDescriptor*>(block + arguments.sequences_offset);
  context.boundaries = reinterpret_cast<const BoundaryDescriptor*>(block + arguments.boundaries_offset);

  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = __shfl_sync(0xffffffffU, thread / 32, 0);
  if (thread == 0) {
    for (int i = 0; i < P::kStages; ++i) {
      ptx::InitBarrier(context.w_full(i), 1);
      ptx::InitBarrier(context.w_empty(i), 4);
      ptx::InitBarrier(context.k_full(i), 2);
      ptx::InitBarrier(context.k_empty(i), 4);
    }
    for (int i = 0; i < kItemSlots; ++i) {
      ptx::InitBarrier(context.item_full(i), 1);
      ptx::InitBarrier(context.item_empty(i), 11);
    }
    for (int i = 0; i < P::kValueBuffers; ++i) {
      ptx::InitBarrier(context.value_full(i), 4);
      ptx::InitBarrier(context.value_empty(i), 4);
    }
    ptx::InitBarrier(context.outgoing_full(), 4);
    ptx::InitBarrier(context.outgoing_empty(), 4);
    ptx::InitBarrier(context.incoming_full(), 32);
    ptx::InitBarrier(context.incoming_empty(), 4);
    ptx::InitBarrier(context.item_written(), 4);
    ptx::FenceBarrierInit();
  }
  __syncthreads();

  if (warp < 4) {
    ptx::RaiseRegisters<240>();
    ComputeProducts<T, KP>(context, thread);
  } else if (warp < 8) {
    ptx::LowerRegisters<128>();
    WriteResults<KP>(context, thread - 128);
  } else {
    ptx::LowerRegisters<128>();
    if (warp == 8) {
      LoadChunks<KP>(context, lane);
    } else if (warp == 9) {
      ComputeFactors<KP>(context, lane);
    } else if (warp == 10) {
      LoadInitialStates<KP>(context, lane);
    } else {
      HandOutItems<KP>(context, lane);
    }
  }
}

}  // namespace gdpcache::kernels::cuda::hopper

#endif  // GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_CUH_
