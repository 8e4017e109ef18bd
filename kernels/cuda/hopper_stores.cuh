#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_STORES_CUH_
#define GDPCACHE_KERNELS_CUDA_HOPPER_STORES_CUH_

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/hopper_items.cuh"

/// What goes to global memory, behind the products: states by tensor copies where there is a map, else by rows.
namespace gdpcache::kernels::cuda::hopper {

/// A float32 tile of a state in shared memory, in swizzled boxes.
template <typename P>
struct StagedState {
  const std::byte* boxes;

  __device__ __forceinline__ const float4& Four(int key, int column) const {
    const int piece = SwizzledPiece<P::kStateRowBytes>(key, column % P::kStateColumns / 4);
    return *reinterpret_cast<const float4*>(boxes + column / P::kStateColumns * P::kStateBoxBytes +
                                            key * P::kStateRowBytes + piece * 16);
  }
  __device__ __forceinline__ float One(int key, int column) const {
    return reinterpret_cast<const float*>(&Four(key, column & ~3))[column & 3];
  }
  /// Eight columns rounded to 16-bit elements.
  template <typename T>
  __device__ __forceinline__ uint4 Packed(int key, int column) const {
    const float4 a = Four(key, column);
    const float4 b = Four(key, column + 4);
    return {Pack<T>(a.x, a.y), Pack<T>(a.z, a.w), Pack<T>(b.x, b.y), Pack<T>(b.z, b.w)};
  }
};

/// Rows of `kPieces` 16-byte pieces, one for each of kWriters warps' threads at a time. What `read` gives is in
/// registers before the first of a batch is stored: the compiler could not know that the stores leave shared memory
/// alone.
template <int kPieces, typename Read>
__device__ __forceinline__ void WriteRows(std::byte* destination, std::int64_t row_bytes, int rows, int pieces,
                                          int thread, Read read) {
  constexpr int kRows = kWriters * 32 / kPieces;
  constexpr int kBatch = 4;
  const int piece = thread % kPieces;
  if (piece >= pieces) return;
  std::byte* to = destination + thread / kPieces * row_bytes + piece * 16;
  const std::int64_t stride = kRows * row_bytes;
#pragma unroll 1
  for (int row = thread / kPieces; row < rows; row += kBatch * kRows) {
    uint4 held[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (row + i * kRows < rows) held[i] = read(row + i * kRows, piece);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (row + i * kRows < rows) ptx::StoreGlobal16(to, held[i]);
      to += stride;
    }
  }
}

/// A tile to `destination`, by the threads of kWriters warps.
template <typename P>
__device__ __forceinline__ void WriteState(const StagedState<P>& staged, std::byte* destination, DataType dtype,
                                           int key_dim, int value_dim, int columns, int thread) {
  const int element = dtype == DataType::kFloat32 ? 4 : 2;
  const std::int64_t row_bytes = static_cast<std::int64_t>(value_dim) * element;
  const int pieces = columns * element / 16;
  if (reinterpret_cast<std::uintptr_t>(destination) % 16 != 0 || row_bytes % 16 != 0) {
#pragma unroll 1
    for (int i = thread; i < key_dim * columns; i += kWriters * 32) {
      const int row = i / columns;
      const int column = i - row * columns;
      StoreElement(destination, static_cast<std::int64_t>(row) * value_dim + column, dtype, staged.One(row, column));
    }
  } else if (dtype == DataType::kFloat32) {
    WriteRows<P::kTile / 4>(destination, row_bytes, key_dim, pieces, thread, [&](int row, int piece) {
      return *reinterpret_cast<const uint4*>(&staged.Four(row, piece * 4));
    });
  } else {
    const bool is_bfloat16 = dtype == DataType::kBFloat16;
    WriteRows<P::kTile / 8>(destination, row_bytes, key_dim, pieces, thread, [&](int row, int piece) {
      return is_bfloat16 ? staged.template Packed<__nv_bfloat16>(row, piece * 8)
                         : staged.template Packed<__half>(row, piece * 8);
    });
  }
}

/// Where one head's tile of a state lies.
__device__ __forceinline__ std::byte* TileOf(const StateReference& state, std::int64_t head, int column) {
  return static_cast<std::byte*>(state.data) +
         (head * state.head_stride + column) * (state.dtype == DataType::kFloat32 ? 4 : 2);
}

/// Warps 4-6: boundaries, then the final state.
template <typename P>
__device__ void WriteStates(const Context<P>& context, int thread) {
  const LaunchShape& shape = context.arguments->shape;
  const int num_householder = static_cast<int>(shape.num_householder);
  const std::int64_t head_elements = static_cast<std::int64_t>(shape.key_dim) * shape.value_dim;
  const int lane = thread % 32;
  const CUtensorMap* slot_map = context.maps() + kSlotMap;
  const CUtensorMap* boundary_map = context.maps() + kBoundaryMap;
  if (context.maps_uploaded() && thread == 0) {
    ptx::AcquireTensorMap(slot_map);
    ptx::AcquireTensorMap(boundary_map);
  }
  RingPosition incoming;
  RingPosition outgoing(P::kIncomingBuffers);
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    const bool packed = PacksBoundaries(sequence);
    const std::int64_t head = item.head;
    const int first_column = item.column;
    const int columns = min(P::kTile, shape.value_dim - first_column);
    const DataType all_dtype = sequence.all_boundaries.dtype;
    const int all_element = all_dtype == DataType::kFloat32 ? 4 : 2;
    auto* of_all = static_cast<std::byte*>(sequence.all_boundaries.data) +
                   (head * head_elements + first_column) * static_cast<std::int64_t>(all_element);
    const std::int64_t of_all_stride = shape.heads * head_elements * all_element;
    int map_state = sequence.boundary_state;
    int finals = sequence.slot.data != nullptr || sequence.final_state.data != nullptr ? 2 : 0;
    BoundaryCursor cursor(sequence, context.boundaries(), num_householder);

    ptx::Wait(context.state_full(incoming.slot), incoming.parity);
    bool incoming_held = true;
#pragma unroll 1
    while (true) {
      const int chunk = cursor.Next();
      const bool is_final = chunk >= chunks;
      const bool loaded = chunk == 0 && !is_final && !packed;  // boundary 0 is the initial state as it was loaded
      if (!loaded && incoming_held) {
        ArriveAsWarp(context.state_empty(incoming.slot), lane);
        incoming.Advance(P::kIncomingBuffers);
        incoming_held = false;
      }
      if (is_final && finals == 0) break;
      if (!loaded) ptx::Wait(context.state_full(outgoing.slot), outgoing.parity);
      const std::uint32_t boxes = context.state(loaded ? incoming.slot : outgoing.slot);
      const bool mapped = is_final ? sequence.slot_index >= 0 : map_state >= 0;
      if (mapped && thread == 0) {
        if (loaded) ptx::FenceAsyncProxy();  // not every way to load a state goes through the copy engine
        const CUtensorMap* map = is_final ? slot_map : boundary_map;
        const int state = is_final ? sequence.slot_index : map_state;
        const bool is_packed = packed && !is_final;
#pragma unroll
        for (int box = 0; box < P::kTile / P::kStateColumns; ++box) {
          const int column = box * P::kStateColumns;
          if (column < columns && !(is_packed && box > 0)) {
            ptx::StoreStateBox(map, boxes + box * P::kStateBoxBytes, first_column + column, static_cast<int>(head),
                               state);
          }
        }
      }
      if (mapped && !is_final) {
        cursor.TakeOfAll(chunk);
        ++map_state;
      }
      // One place writes all other states, to spare the instruction cache.
      const StagedState<P> staged{context.template at<const std::byte>(boxes)};
#pragma unroll 1
      while (true) {
        std::byte* to = nullptr;
        DataType dtype = all_dtype;
        if (is_final) {
          if (finals == 0) break;
          const StateReference& state = finals == 2 ? sequence.slot : sequence.final_state;
          const bool stored = finals == 2 && mapped;
          --finals;
          if (state.data == nullptr || stored) continue;
          to = TileOf(state, head, first_column);
          dtype = state.dtype;
        } else if (cursor.TakeOfAll(chunk)) {
          to = of_all;
          of_all += of_all_stride;
        } else if (const BoundaryDescriptor* single = cursor.TakeSingle(chunk)) {
          to = TileOf(single->destination, head, first_column);
          dtype = single->destination.dtype;
        } else {
          break;
        }
        WriteState<P>(staged, to, dtype, shape.key_dim, shape.value_dim, columns, thread);
      }
      if (mapped && thread == 0) ptx::WaitForStoredReads();
      if (!loaded) {
        ArriveAsWarp(context.state_empty(outgoing.slot), lane);
        outgoing.Advance(P::kStateBuffers, P::kIncomingBuffers);
      }
      if (is_final) break;
    }
  });
}

/// Warp 7: v_new, which the product warps leave in the place of u.
template <typename P>
__device__ void WriteValues(const Context<P>& context, int lane) {
  constexpr int kPieces = P::kTile / 8;  // of 16 bytes in a row
  constexpr int kRows = 32 / kPieces;
  constexpr int kBatch = kChunk / kRows < 8 ? kChunk / kRows : 8;
  const std::int64_t heads = context.arguments->shape.heads;
  const int value_dim = context.arguments->shape.value_dim;
  const std::int64_t token_bytes = heads * value_dim * 2;
  const int row = lane / kPieces;
  const int piece = lane % kPieces;
  RingPosition position;
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const bool wanted = sequence.v_new != nullptr;
    const int columns = min(P::kTile, value_dim - item.column);
    std::int64_t left = sequence.length;
    auto* tile = static_cast<std::byte*>(sequence.v_new) + (item.head * value_dim + item.column) * 2;
    const bool aligned = reinterpret_cast<std::uintptr_t>(tile) % 16 == 0;
    const bool inside = piece * 8 < columns;
#pragma unroll 1
    for (; left > 0; left -= kChunk) {
      const int rows = static_cast<int>(min(static_cast<std::int64_t>(kChunk), left));
      const auto* staged = context.template at<std::byte>(context.values(position.slot));
      ptx::Wait(context.value_full(position.slot), position.parity);
      if (wanted && aligned) {
        std::byte* to = tile + row * token_bytes + piece * 16;
#pragma unroll 1
        for (int first = row; first < rows; first += kBatch * kRows) {
          uint4 held[kBatch];
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            const int from = first + i * kRows;
            held[i] = *reinterpret_cast<const uint4*>(staged + from * P::kRowBytes +
                                                      SwizzledPiece<P::kRowBytes>(from, piece) * 16);
          }
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            if (first + i * kRows < rows && inside) ptx::StoreGlobal16(to, held[i]);
            to += kRows * token_bytes;
          }
        }
      } else if (wanted) {
#pragma unroll 1
        for (int i = lane; i < rows * columns; i += 32) {
          const int r = i / columns;
          const int column = i - r * columns;
          *reinterpret_cast<std::uint16_t*>(tile + r * token_bytes + column * 2) =
              *reinterpret_cast<const std::uint16_t*>(staged + r * P::kRowBytes +
                                                      SwizzledPiece<P::kRowBytes>(r, column / 8) * 16 + column % 8 * 2);
        }
      }
      tile += kChunk * token_bytes;
      ArriveAsWarp(context.value_empty(position.slot), lane);
      position.Advance(P::kValueSlots);
    }
  });
}

}  // namespace gdpcache::kernels::cuda::hopper

#endif  // GDPCACHE_KERNELS_CUDA_HOPPER_STORES_CUH_
