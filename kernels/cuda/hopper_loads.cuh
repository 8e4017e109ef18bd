#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_LOADS_CUH_
#define GDPCACHE_KERNELS_CUDA_HOPPER_LOADS_CUH_

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/hopper_items.cuh"

/// What comes from global memory, ahead of the products.
namespace gdpcache::kernels::cuda::hopper {

/// One of k, w and u of a sequence, as the loads below see it.
struct Operand {
  const void* data;
  std::uint32_t boxes;  // where a chunk of it goes
  int columns;          // of the chunk
  int box_columns;
  int first_column;
  int width;  // of the tensor
};

/// Copies rows of one head into boxes as the tensor copies would, for operands those cannot address; zeros beyond.
__device__ __forceinline__ void LoadElements(std::byte* boxes, const Operand& operand, std::int64_t row, int rows,
                                             std::int64_t heads, std::int64_t head, int lane) {
  const auto* source = static_cast<const std::uint16_t*>(operand.data);
  const int row_bytes = operand.box_columns * 2;
#pragma unroll 1
  for (int i = lane; i < kChunk * operand.columns; i += 32) {
    const int r = i / operand.columns;
    const int c = i - r * operand.columns;
    const int column = operand.first_column + c;
    std::uint16_t value = 0;
    if (r < rows && column < operand.width) value = source[((row + r) * heads + head) * operand.width + column];
    const int piece = ((c % operand.box_columns) / 8) ^ (r * row_bytes / 128 % (row_bytes / 16));
    *reinterpret_cast<std::uint16_t*>(boxes + (c / operand.box_columns) * kChunk * row_bytes + r * row_bytes +
                                      piece * 16 + (c % 8) * 2) = value;
  }
}

/// Queues copies of the first `rows` rows of a sequence, in pieces of 16 bytes; rows beyond keep what they hold.
template <int kColumns, int kBoxColumns>
__device__ __forceinline__ void CopyRows(const Operand& operand, int rows, std::int64_t heads, std::int64_t head,
                                         int lane) {
  constexpr int kPieces = kColumns / 8;
  constexpr int kRowBytes = kBoxColumns * 2;
#pragma unroll 1
  for (int i = lane; i < rows * kPieces; i += 32) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const int column = operand.first_column + piece * 8;
    const bool inside = column < operand.width;
    const std::int64_t element = (row * heads + head) * operand.width + (inside ? column : 0);
    const std::uint32_t to = operand.boxes + piece / (kBoxColumns / 8) * kChunk * kRowBytes + row * kRowBytes +
                             SwizzledPiece<kRowBytes>(row, piece % (kBoxColumns / 8)) * 16;
    ptx::CopyAsync16(to, static_cast<const std::uint16_t*>(operand.data) + element, inside);
  }
}

__device__ __forceinline__ bool IsAligned16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Warp 8: w, k and u. A cluster shares out the boxes of w and k, each block loading its own for all.
template <typename P>
__device__ void LoadChunks(const Context<P>& context, int rank, int lane) {
  constexpr std::uint16_t kAllBlocks = (1 << P::kCluster) - 1;
  const LaunchShape& shape = context.arguments->shape;
  const std::uint64_t as_usual = ptx::UsedAsUsual();
  const std::uint64_t again = ptx::UsedAgain();
  RingPosition position;
  RingPosition value;

  const auto load_boxes = [&](const CUtensorMap* map, std::uint32_t boxes, std::uint32_t full, int head, int row,
                              int first_box) {
#pragma unroll
    for (int group = 0; group < P::kGroups; ++group) {
      if constexpr (P::kCluster == 1) {
        ptx::LoadBox(boxes + group * kBoxBytes, map, full, group * 64, head, row, again);
      } else if ((first_box + group) * P::kCluster / (2 * P::kGroups) == rank) {
        ptx::LoadBoxForAll(boxes + group * kBoxBytes, map, full, group * 64, head, row, kAllBlocks, again);
      }
    }
  };

  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    if (chunks == 0) return;
    const int head = static_cast<int>(item.head);
    if (sequence.map_index >= 0) {
      const CUtensorMap* maps = context.maps() + sequence.map_index;  // k, w, u
      if (context.maps_uploaded() && lane < 3) ptx::AcquireTensorMap(maps + lane);
      __syncwarp();
#pragma unroll 1
      for (int c = 0; c < chunks; ++c) {
        const int stage = position.slot;
        const int row = sequence.first_row + c * kChunk;
        if (P::kLoaderArrivals == 32 || lane == 0) {
          ptx::Wait(context.w_empty(stage), position.parity ^ 1);
          if (lane == 0) {
            ptx::ArriveExpectBytes(context.w_full(stage),
                                   (P::kSplit ? P::kOperandBytes : 2 * P::kOperandBytes) + P::kValueBytes);
            load_boxes(maps + 1, context.w(stage), context.w_full(stage), head, row, 0);
            if (!P::kSplit) load_boxes(maps, context.k(stage), context.k_full(stage), head, row, P::kGroups);
          } else {
            ptx::Arrive(context.w_full(stage));
          }
          ptx::Wait(context.value_empty(value.slot), value.parity ^ 1);
          if (lane == 0) {
            ptx::LoadBox(context.values(value.slot), maps + 2, context.w_full(stage), item.column, head, row, as_usual);
          }
          if constexpr (P::kSplit) {
            ptx::Wait(context.k_empty(stage), position.parity ^ 1);
            if (lane == 0) {
              ptx::ArriveExpectBytes(context.k_full(stage), P::kOperandBytes);
              load_boxes(maps, context.k(stage), context.k_full(stage), head, row, P::kGroups);
            } else {
              ptx::Arrive(context.k_full(stage));
            }
          }
        }
        position.Advance(P::kStages);
        value.Advance(P::kValueSlots);
      }
      return;
    }

    const bool by_rows =
        sequence.length <= kFewRows && IsAligned16(sequence.k) && IsAligned16(sequence.w) && IsAligned16(sequence.u);
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      const int stage = position.slot;
      const std::int64_t row = static_cast<std::int64_t>(c) * kChunk;
      const int rows = static_cast<int>(min(static_cast<std::int64_t>(kChunk), sequence.length - row));
      const Operand u = {sequence.u, context.values(value.slot), P::kTile, P::kTile, item.column, shape.value_dim};
      const Operand w = {sequence.w, context.w(stage), P::kKeys, 64, 0, shape.key_dim};
      const Operand k = {sequence.k, context.k(stage), P::kKeys, 64, 0, shape.key_dim};
      const auto load_elements = [&](const Operand& operand) {
        LoadElements(context.template at<std::byte>(operand.boxes), operand, row, rows, shape.heads, head, lane);
      };
      const auto complete = [&](std::uint32_t full) {
        if (P::kLoaderArrivals == 32 && by_rows) {
          ptx::ArriveAfterCopies(full);
        } else if (P::kLoaderArrivals == 32) {
          ptx::Arrive(full);
        } else {
          ptx::WaitForCopies();
          __syncwarp();
          if (lane == 0) ptx::Arrive(full);
        }
      };
      ptx::Wait(context.w_empty(stage), position.parity ^ 1);
      ptx::Wait(context.value_empty(value.slot), value.parity ^ 1);
      if (by_rows) {
        CopyRows<P::kTile, P::kTile>(u, rows, shape.heads, head, lane);
        CopyRows<P::kKeys, 64>(w, rows, shape.heads, head, lane);
      } else {
        load_elements(u);
        load_elements(w);
      }
      if constexpr (P::kSplit) {
        complete(context.w_full(stage));
        ptx::Wait(context.k_empty(stage), position.parity ^ 1);
      }
      if (by_rows) {
        CopyRows<P::kKeys, 64>(k, rows, shape.heads, head, lane);
      } else {
        load_elements(k);
      }
      complete(context.k_full(stage));
      position.Advance(P::kStages);
      value.Advance(P::kValueSlots);
    }
  });
}

/// Warp 9: 2^(g[last] - g) of each token, two tokens a lane, and the chunk's decay 2^g[last]. g comes by asynchronous
/// copies, several chunks ahead: loads into registers would be waited for in groups, so that the latest of them, not
/// the oldest, would set the pace.
template <typename P>
__device__ void ComputeFactors(const Context<P>& context, int lane) {
  const std::int64_t heads = context.arguments->shape.heads;
  RingPosition position;
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    const float* g = sequence.g == nullptr ? nullptr : sequence.g + item.head;
    // Each lane reads what it has itself copied, so no other needs to know that it is there.
    const auto fetch = [&](int chunk) {
      if (g != nullptr && chunk < chunks) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int token = lane + half * 32;
          const std::int64_t row = static_cast<std::int64_t>(chunk) * kChunk + token;
          const bool present = row < sequence.length;
          ptx::CopyAsync4(context.g(chunk % P::kGSlots) + token * 4, g + (present ? row * heads : 0), present);
        }
      }
      ptx::CommitCopies();
    };
#pragma unroll
    for (int c = 0; c < P::kGSlots; ++c) fetch(c);
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      ptx::WaitForCopiesBut<P::kGSlots - 1>();
      float g_low = 0.0F;
      float g_high = 0.0F;
      if (g != nullptr) {
        const auto* tokens = context.template at<volatile float>(context.g(c % P::kGSlots));
        g_low = tokens[lane];
        g_high = tokens[lane + 32];
      }
      const std::int64_t left = sequence.length - static_cast<std::int64_t>(c) * kChunk;
      const int last = static_cast<int>(min(static_cast<std::int64_t>(kChunk), left)) - 1;
      const float g_last = __shfl_sync(0xffffffffU, last < 32 ? g_low : g_high, last & 31);
      const float factor_low = exp2f(g_last - g_low);
      const float factor_high = exp2f(g_last - g_high);
      fetch(c + P::kGSlots);
      ptx::Wait(context.k_empty(position.slot), position.parity ^ 1);
      float* factors = context.factors(position.slot);
      factors[lane] = factor_low;
      factors[lane + 32] = factor_high;
      if (lane == 0) factors[kChunk] = exp2f(g_last);
      ArriveAsWarp(context.k_full(position.slot), lane);
      position.Advance(P::kStages);
    }
  });
}

/// Warp 10: initial states in float32, zeros beyond K and V and where there is none. State buffers from 0 on are for
/// initial states; the rest are for results.
template <typename P>
__device__ void LoadInitialStates(const Context<P>& context, int lane) {
  constexpr int kPieces = P::kStateColumns / 4;  // of 16 bytes in a box's row
  const LaunchShape& shape = context.arguments->shape;
  const CUtensorMap* map = context.maps() + kInitialStateMap;
  if (context.maps_uploaded() && lane == 0) ptx::AcquireTensorMap(map);
  RingPosition position;
  ForEachItem(context, lane, [&](const Item& item) {
    ptx::Wait(context.state_empty(position.slot), position.parity ^ 1);
    const std::uint32_t buffer = context.state(position.slot);
    const std::uint32_t full = context.state_full(position.slot);
    position.Advance(P::kIncomingBuffers);
    const SequenceDescriptor& sequence = item.sequence;
    if (sequence.initial_state_index >= 0) {
      if (lane != 0) {
        ptx::Arrive(full);
        return;
      }
      ptx::ArriveExpectBytes(full, P::kStateBytes);
#pragma unroll
      for (int box = 0; box < P::kTile / P::kStateColumns; ++box) {
        ptx::LoadStateBox(buffer + box * P::kStateBoxBytes, map, full, item.column + box * P::kStateColumns,
                          static_cast<int>(item.head), sequence.initial_state_index);
      }
      return;
    }
    const StateReference& state = sequence.initial_state;
    const std::int64_t offset = item.head * state.head_stride + item.column;
    const int columns = min(P::kTile, shape.value_dim - item.column);
#pragma unroll 1
    for (int i = lane; i < P::kKeys * (P::kTile / 4); i += 32) {
      const int key = i / (P::kTile / 4);
      const int column = i % (P::kTile / 4) * 4;
      float values[4] = {};
      if (state.data != nullptr && key < shape.key_dim) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (column + j < columns) {
            values[j] = LoadElement(state.data, offset + static_cast<std::int64_t>(key) * shape.value_dim + column + j,
                                    state.dtype);
          }
        }
      }
      const int piece = SwizzledPiece<P::kStateRowBytes>(key, column / 4 % kPieces);
      *context.template at<float4>(buffer + column / P::kStateColumns * P::kStateBoxBytes + key * P::kStateRowBytes +
                                   piece * 16) = {values[0], values[1], values[2], values[3]};
    }
    ptx::Arrive(full);
  });
}

}  // namespace gdpcache::kernels::cuda::hopper

#endif  // GDPCACHE_KERNELS_CUDA_HOPPER_LOADS_CUH_
