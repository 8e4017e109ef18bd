#ifndef GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_CUH_
#define GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/hopper_ptx.cuh"
#include "kernels/cuda/recurrence_hopper.h"

/// One warpgroup holds S^T [value columns, K] in registers and multiplies with warpgroup products whose left operand
/// comes from registers: -x^T = S^T w^T - u^T, then S^T = S^T 2^g - (-x)^T k. The layout of an accumulator, packed in
/// pairs, is that of a left operand, so S and x never leave the registers; w and k are right operands as stored.
/// Everything that touches global memory is done by other warps, which run ahead or behind through rings in shared
/// memory:
///
///   warps 0-3   products                      warp 8   w, k, u by bulk tensor copies
///   warps 4-6   states to memory              warp 9   2^(g[last] - g) and 2^g[last]
///   warp 7      v_new to memory               warp 10  initial states
///                                             warp 11  hands out (sequence, head, value tile) items
///
/// A product always has 64 rows. A tile of 64 value columns fills them; a tile of 32 fills the first eight of each
/// warp's sixteen and leaves the others zero: no more products a second, but half the other instructions and, since a
/// multiprocessor stores no more than 32 bytes a cycle, half the time to store a boundary.
namespace gdpcache::kernels::cuda::hopper {

inline constexpr int kChunk = kHopperChunk;
inline constexpr int kThreads = 384;
inline constexpr int kWriters = 3;  // warps that write states
inline constexpr int kItemSlots = 4;
inline constexpr int kBoxBytes = kChunk * 128;  // 64 rows of 64 elements of w or k

// One lane speaks for its warp. compute-sanitizer's racecheck does not see that, so a build for it lets every lane
// arrive.
#ifdef GDPCACHE_CUDA_RACECHECK
inline constexpr int kArrivalsOfWarp = 32;
#else
inline constexpr int kArrivalsOfWarp = 1;
#endif

struct Item {
  SequenceDescriptor sequence;
  std::int64_t head;
  std::int32_t column;  // first value column
  std::int32_t valid;   // 0: no more items
};

/// How the shared memory is divided for keys padded to KP and tiles of `Tile` value columns; for short sequences, whose
/// initial states count for more, or for others.
template <int KP, int Tile, bool Short>
struct Plan {
  static constexpr int kGroups = KP / 64;
  static constexpr int kHalves = Tile / 32;  // of the rows that products have, used
  static constexpr int kStages = Short ? 2 : KP == 64 || (KP == 128 && Tile == 32) ? 4 : KP < 256 ? 3 : 2;
  static constexpr int kStateBuffers = KP == 64 ? 4 : Short || (KP == 128 && Tile == 32) ? 3 : 2;
  static constexpr int kIncomingBuffers =
      KP == 64 || Short ? 2 : 1;  // of them, for initial states; the rest for results
  static constexpr int kValueBuffers = KP > 128 ? 1 : 2;
  static constexpr bool kSplit = KP > 128;  // k has barriers of its own, which makes the most of few stages

  // Rows of staged states and values are padded so that the transposing accesses of the product warps meet no bank
  // twice.
  static constexpr int kStatePitch = Tile + 4;  // floats
  static constexpr int kValuePitch = Tile + 8;  // 16-bit elements

  static constexpr int kStateBytes = KP * kStatePitch * 4;
  static constexpr int kValueBytes = kChunk * kValuePitch * 2;
  static constexpr int kValueBoxBytes = kChunk * Tile * 2;  // 64 rows of u
  static constexpr int kStageBytes = 2 * kGroups * kBoxBytes + kValueBoxBytes;
  static constexpr int kFactorFloats = kChunk + 4;  // a factor per token, then the chunk's decay

  static constexpr int kUOffset = 2 * kStages * kGroups * kBoxBytes;
  static constexpr int kStateOffset = kStages * kStageBytes;
  static constexpr int kValueOffset = kStateOffset + kStateBuffers * kStateBytes;
  static constexpr int kFactorOffset = kValueOffset + kValueBuffers * kValueBytes;
  static constexpr int kItemOffset = kFactorOffset + kStages * kFactorFloats * 4;
  static constexpr int kBarrierOffset = kItemOffset + kItemSlots * static_cast<int>(sizeof(Item));
  static constexpr int kBarriers = 4 * kStages + 2 * kItemSlots + 2 * kValueBuffers + 2 * kStateBuffers;
  static constexpr int kZeroOffset = kBarrierOffset + kBarriers * 8;
  static constexpr int kBytes = kZeroOffset + 8;
  static constexpr int kAllocation = kBytes + 1024;  // room to align the first box
};

/// Everything a role needs to find its way: pointers into shared memory and the launch's arguments.
template <int KP, int Tile, bool Short>
struct Context {
  using P = Plan<KP, Tile, Short>;
  std::byte* base;
  std::uint32_t shared;  // the address of base
  const HopperArguments* arguments;

  __device__ const CUtensorMap* maps() const { return reinterpret_cast<const CUtensorMap*>(block()); }
  __device__ const SequenceDescriptor* sequences() const {
    return reinterpret_cast<const SequenceDescriptor*>(block() + arguments->sequences_offset);
  }
  __device__ const BoundaryDescriptor* boundaries() const {
    return reinterpret_cast<const BoundaryDescriptor*>(block() + arguments->boundaries_offset);
  }

  // Addresses in shared memory.
  __device__ std::uint32_t w(int stage) const { return shared + 2 * stage * P::kGroups * kBoxBytes; }
  __device__ std::uint32_t k(int stage) const { return shared + (2 * stage + 1) * P::kGroups * kBoxBytes; }
  __device__ std::uint32_t u(int stage) const { return shared + P::kUOffset + stage * P::kValueBoxBytes; }
  __device__ std::uint32_t state(int buffer) const { return shared + P::kStateOffset + buffer * P::kStateBytes; }
  __device__ std::uint32_t values(int slot) const { return shared + P::kValueOffset + slot * P::kValueBytes; }

  /// What is at such an address.
  template <typename Type>
  __device__ Type* at(std::uint32_t address) const {
    return reinterpret_cast<Type*>(base + (address - shared));
  }
  __device__ float* factors(int stage) const {
    return reinterpret_cast<float*>(base + P::kFactorOffset) + stage * P::kFactorFloats;
  }
  __device__ Item* item(int slot) const { return reinterpret_cast<Item*>(base + P::kItemOffset) + slot; }
  __device__ volatile std::uint32_t* zero() const {
    return reinterpret_cast<volatile std::uint32_t*>(base + P::kZeroOffset);
  }

  // Barriers. Without a split, one pair covers all of a stage.
  __device__ std::uint32_t w_full(int stage) const { return barrier(stage); }
  __device__ std::uint32_t w_empty(int stage) const { return barrier(P::kStages + stage); }
  __device__ std::uint32_t k_full(int stage) const { return barrier((P::kSplit ? 2 * P::kStages : 0) + stage); }
  __device__ std::uint32_t k_empty(int stage) const {
    return barrier((P::kSplit ? 2 * P::kStages : 0) + P::kStages + stage);
  }
  __device__ std::uint32_t item_full(int slot) const { return barrier(4 * P::kStages + slot); }
  __device__ std::uint32_t item_empty(int slot) const { return item_full(kItemSlots + slot); }
  __device__ std::uint32_t value_full(int slot) const { return item_full(2 * kItemSlots + slot); }
  __device__ std::uint32_t value_empty(int slot) const { return value_full(P::kValueBuffers + slot); }
  __device__ std::uint32_t state_full(int buffer) const { return value_full(2 * P::kValueBuffers + buffer); }
  __device__ std::uint32_t state_empty(int buffer) const { return state_full(P::kStateBuffers + buffer); }

 private:
  __device__ const std::byte* block() const {
    return arguments->uploaded_block != nullptr ? arguments->uploaded_block : arguments->inline_block;
  }
  __device__ std::uint32_t barrier(int index) const { return shared + P::kBarrierOffset + index * 8; }
};

/// A place in a ring of buffers. The consumer of a buffer waits for `parity`; its producer for the opposite, which a
/// fresh barrier passes at once.
struct RingPosition {
  int slot;
  std::uint32_t parity = 0;
  __device__ __forceinline__ explicit RingPosition(int first = 0) : slot(first) {}
  __device__ __forceinline__ void Advance(int end, int first = 0) {
    if (++slot == end) {
      slot = first;
      parity ^= 1;
    }
  }
};

/// Arrives for all of the warp, whose earlier accesses it covers.
__device__ __forceinline__ void ArriveAsWarp(std::uint32_t barrier, int lane) {
  __syncwarp();
  if (kArrivalsOfWarp == 32 || lane == 0) ptx::Arrive(barrier);
}

/// `value`, the same in all lanes, in a form the compiler knows to be so: warpgroup products must not appear to
/// diverge.
__device__ __forceinline__ int Uniform(int value) { return __shfl_sync(0xffffffffU, value, 0); }

__device__ __forceinline__ int Chunks(const SequenceDescriptor& sequence) {
  return Uniform(static_cast<int>((sequence.length + kChunk - 1) / kChunk));
}

/// Walks the boundaries of a sequence that somebody wants, each known by the chunk before which it lies.
class BoundaryCursor {
 public:
  __device__ __forceinline__ BoundaryCursor(const SequenceDescriptor& sequence, const BoundaryDescriptor* boundaries,
                                            int num_householder)
      : boundaries_(boundaries),
        index_(Uniform(sequence.first_boundary)),
        end_(index_ + Uniform(sequence.boundary_count)),
        num_householder_(num_householder),
        next_of_all_(Uniform(sequence.all_boundaries.data != nullptr) != 0 ? 0 : kNone) {
    Peek();
  }

  /// The chunk of the next wanted boundary; beyond all chunks if there is none.
  __device__ __forceinline__ int Next() const { return min(next_of_all_, next_single_); }

  /// Whether the boundary goes among all of them; once for each.
  __device__ __forceinline__ bool TakeOfAll(int chunk) {
    if (chunk != next_of_all_) return false;
    next_of_all_ += num_householder_;
    return true;
  }

  /// The boundary's next single destination, or nullptr.
  __device__ __forceinline__ const BoundaryDescriptor* TakeSingle(int chunk) {
    if (chunk != next_single_) return nullptr;
    const BoundaryDescriptor* taken = boundaries_ + index_++;
    Peek();
    return taken;
  }

  /// Moves past the boundary.
  __device__ __forceinline__ void Pass(int chunk) {
    TakeOfAll(chunk);
#pragma unroll 1
    while (TakeSingle(chunk) != nullptr) {
    }
  }

 private:
  static constexpr int kNone = 0x7fffffff;
  __device__ __forceinline__ void Peek() {
    next_single_ = kNone;
    if (index_ != end_) next_single_ = Uniform(static_cast<int>(boundaries_[index_].boundary) * num_householder_);
  }

  const BoundaryDescriptor* boundaries_;
  int index_;
  int end_;
  int num_householder_;
  int next_of_all_;
  int next_single_ = kNone;
};

/// Warp 11: the first item of a block is its own number; the others come from a counter, longest sequences first.
template <int KP, int Tile, bool Short>
__device__ void HandOutItems(const Context<KP, Tile, Short>& context, int lane) {
  const HopperArguments& arguments = *context.arguments;
  const std::int64_t per_sequence = arguments.shape.heads * arguments.value_tiles;
  RingPosition position;
  std::int64_t number = blockIdx.x;
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
        item->head = rest / arguments.value_tiles;
        item->column = static_cast<std::int32_t>(rest % arguments.value_tiles) * Tile;
        item->valid = 1;
      }
    } else if (lane == 0) {
      item->valid = 0;
    }
    ArriveAsWarp(context.item_full(position.slot), lane);
    if (number >= arguments.items) break;
    position.Advance(kItemSlots);
    if (arguments.items <= gridDim.x) {
      number = arguments.items;
    } else {
      if (lane == 0) number = gridDim.x + static_cast<std::int64_t>(atomicAdd(&arguments.counters[0], 1ULL));
      number = __shfl_sync(0xffffffffU, number, 0);
    }
  }
  if (arguments.items > gridDim.x && lane == 0) {
    if (atomicAdd(&arguments.counters[1], 1ULL) ==
        gridDim.x - 1) {  // the last block leaves the counters as it found them
      arguments.counters[0] = 0;
      arguments.counters[1] = 0;
    }
  }
}

/// Calls `work(item)` for each item; the calling warp reads the item until it returns.
template <int KP, int Tile, bool Short, typename Work>
__device__ __forceinline__ void ForEachItem(const Context<KP, Tile, Short>& context, int lane, Work work) {
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

/// Copies a chunk's rows of one head into boxes of `box_columns` as the tensor copies would, for operands those cannot
/// address.
__device__ __forceinline__ void LoadRows(std::byte* boxes, int columns, int box_columns, const void* tensor,
                                         std::int64_t row, int rows, std::int64_t heads, std::int64_t head,
                                         int first_column, int width, int lane) {
  const auto* source = static_cast<const std::uint16_t*>(tensor);
  const int row_bytes = box_columns * 2;
#pragma unroll 1
  for (int i = lane; i < kChunk * columns; i += 32) {
    const int r = i / columns;
    const int c = i - r * columns;
    std::uint16_t value = 0;
    if (r < rows && first_column + c < width) value = source[((row + r) * heads + head) * width + first_column + c];
    const int piece = ((c % box_columns) / 8) ^ (r * row_bytes / 128 % (row_bytes / 16));
    *reinterpret_cast<std::uint16_t*>(boxes + (c / box_columns) * kChunk * row_bytes + r * row_bytes + piece * 16 +
                                      (c % 8) * 2) = value;
  }
}

/// Warp 8.
template <int KP, int Tile, bool Short>
__device__ void LoadChunks(const Context<KP, Tile, Short>& context, int lane) {
  using P = Plan<KP, Tile, Short>;
  constexpr int kOperandBytes = P::kGroups * kBoxBytes;
  const LaunchShape& shape = context.arguments->shape;
  const std::uint64_t once = ptx::UsedOnce();
  const std::uint64_t again = ptx::UsedAgain();
  RingPosition position;
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    if (chunks == 0) return;
    const bool mapped = sequence.map_index >= 0;
    const CUtensorMap* maps = context.maps() + (mapped ? sequence.map_index : 0);
    if (mapped && context.arguments->uploaded_block != nullptr && lane < 3) ptx::AcquireTensorMap(maps + lane);
    __syncwarp();
    const int head = static_cast<int>(item.head);
    for (int c = 0; c < chunks; ++c) {
      const int stage = position.slot;
      const int row = c * kChunk;
      if (mapped) {
        if (lane == 0) {
          ptx::Wait(context.w_empty(stage), position.parity ^ 1);
          ptx::ArriveExpectBytes(context.w_full(stage),
                                 P::kValueBoxBytes + (P::kSplit ? kOperandBytes : 2 * kOperandBytes));
          ptx::LoadBox(context.u(stage), maps + 2, context.w_full(stage), item.column, head, row, once);
          for (int group = 0; group < P::kGroups; ++group) {
            ptx::LoadBox(context.w(stage) + group * kBoxBytes, maps + 1, context.w_full(stage), group * 64, head, row,
                         again);
          }
          if constexpr (P::kSplit) {
            ptx::Wait(context.k_empty(stage), position.parity ^ 1);
            ptx::ArriveExpectBytes(context.k_full(stage), kOperandBytes);
          }
          for (int group = 0; group < P::kGroups; ++group) {
            ptx::LoadBox(context.k(stage) + group * kBoxBytes, maps, context.k_full(stage), group * 64, head, row,
                         again);
          }
        }
      } else {
        const std::int64_t first = static_cast<std::int64_t>(c) * kChunk;
        const int rows = static_cast<int>(min(static_cast<std::int64_t>(kChunk), sequence.length - first));
        const auto release = [&](std::uint32_t barrier) {
          ptx::FenceAsyncProxy();
          __syncwarp();
          if (lane == 0) ptx::Arrive(barrier);
        };
        ptx::Wait(context.w_empty(stage), position.parity ^ 1);
#pragma unroll 1
        for (int operand = 0; operand < 3; ++operand) {  // u, w, k
          if (P::kSplit && operand == 2) {
            release(context.w_full(stage));
            ptx::Wait(context.k_empty(stage), position.parity ^ 1);
          }
          const bool is_u = operand == 0;
          const std::uint32_t boxes = is_u ? context.u(stage) : operand == 1 ? context.w(stage) : context.k(stage);
          LoadRows(context.template at<std::byte>(boxes), is_u ? Tile : KP, is_u ? Tile : 64,
                   is_u           ? sequence.u
                   : operand == 1 ? sequence.w
                                  : sequence.k,
                   first, rows, shape.heads, item.head, is_u ? item.column : 0, is_u ? shape.value_dim : shape.key_dim,
                   lane);
        }
        release(context.k_full(stage));
      }
      position.Advance(P::kStages);
    }
  });
}

/// Warp 9: two tokens a lane; the loads of the next chunks are in flight while a chunk's factors are formed.
template <int KP, int Tile, bool Short>
__device__ void ComputeFactors(const Context<KP, Tile, Short>& context, int lane) {
  using P = Plan<KP, Tile, Short>;
  const std::int64_t heads = context.arguments->shape.heads;
  RingPosition position;
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    const float* g = sequence.g == nullptr ? nullptr : sequence.g + item.head;
    const auto load = [&](int chunk, int token) {
      const std::int64_t row = static_cast<std::int64_t>(chunk) * kChunk + token;
      return g != nullptr && row < sequence.length ? g[row * heads] : 0.0F;
    };
    float low[2] = {load(0, lane), load(1, lane)};
    float high[2] = {load(0, lane + 32), load(1, lane + 32)};
    for (int c = 0; c < chunks; ++c) {
      const float g_low = low[0];
      const float g_high = high[0];
      low[0] = low[1];
      high[0] = high[1];
      low[1] = load(c + 2, lane);
      high[1] = load(c + 2, lane + 32);
      const std::int64_t left = sequence.length - static_cast<std::int64_t>(c) * kChunk;
      const int last = static_cast<int>(min(static_cast<std::int64_t>(kChunk), left)) - 1;
      const float g_last = __shfl_sync(0xffffffffU, last < 32 ? g_low : g_high, last & 31);
      ptx::Wait(context.k_empty(position.slot), position.parity ^ 1);
      float* factors = context.factors(position.slot);
      factors[lane] = -exp2f(g_last - g_low);  // of -x
      factors[lane + 32] = -exp2f(g_last - g_high);
      if (lane == 0) factors[kChunk] = exp2f(g_last);
      ArriveAsWarp(context.k_full(position.slot), lane);
      position.Advance(P::kStages);
    }
  });
}

/// Warp 10: initial states in float32, zeros beyond K and V and where there is none. State buffers from 0 on are for
/// initial states; the rest are for results.
template <int KP, int Tile, bool Short>
__device__ void LoadInitialStates(const Context<KP, Tile, Short>& context, int lane) {
  using P = Plan<KP, Tile, Short>;
  constexpr int kPieces = Tile / 4;  // of 16 bytes in a row
  constexpr int kRows = 32 / kPieces;
  const LaunchShape& shape = context.arguments->shape;
  RingPosition position;
  ForEachItem(context, lane, [&](const Item& item) {
    ptx::Wait(context.state_empty(position.slot), position.parity ^ 1);
    const std::uint32_t buffer = context.state(position.slot);
    const std::uint32_t full = context.state_full(position.slot);
    position.Advance(P::kIncomingBuffers);
    const StateReference& state = item.sequence.initial_state;
    const std::int64_t offset = item.head * state.head_stride + item.column;
    const int columns = min(Tile, shape.value_dim - item.column);
    const auto* source = static_cast<const float*>(state.data) + offset;
    if (state.data != nullptr && state.dtype == DataType::kFloat32 && columns == Tile && shape.key_dim == KP &&
        reinterpret_cast<std::uintptr_t>(source) % 16 == 0 && shape.value_dim % 4 == 0) {
      std::uint32_t to = buffer + (lane / kPieces * P::kStatePitch + lane % kPieces * 4) * 4;
      const float* from = source + lane / kPieces * static_cast<std::int64_t>(shape.value_dim) + lane % kPieces * 4;
#pragma unroll 4
      for (int row = 0; row < KP; row += kRows) {
        ptx::CopyAsync16(to, from);
        to += kRows * P::kStatePitch * 4;
        from += kRows * static_cast<std::int64_t>(shape.value_dim);
      }
      ptx::ArriveAfterCopies(full);
      return;
    }
    auto* incoming = context.template at<float>(buffer);
#pragma unroll 4
    for (int row = 0; row < KP; ++row) {
      for (int column = lane; column < Tile; column += 32) {
        float value = 0.0F;
        if (state.data != nullptr && row < shape.key_dim && column < columns) {
          value =
              LoadElement(state.data, offset + static_cast<std::int64_t>(row) * shape.value_dim + column, state.dtype);
        }
        incoming[row * P::kStatePitch + column] = value;
      }
    }
    ptx::Arrive(full);
  });
}

/// Eight floats rounded to 16-bit elements.
template <typename T>
__device__ __forceinline__ uint4 PackEight(const float* source) {
  const float4 a = *reinterpret_cast<const float4*>(source);
  const float4 b = *reinterpret_cast<const float4*>(source + 4);
  return {Pack<T>(a.x, a.y), Pack<T>(a.z, a.w), Pack<T>(b.x, b.y), Pack<T>(b.z, b.w)};
}

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
  const std::uint64_t policy = ptx::UsedOnce();
#pragma unroll 1
  for (int row = thread / kPieces; row < rows; row += kBatch * kRows) {
    uint4 held[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (row + i * kRows < rows) held[i] = read(row + i * kRows, piece);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (row + i * kRows < rows) ptx::StoreGlobal16(to, held[i], policy);
      to += stride;
    }
  }
}

/// The tile staged in rows of kStatePitch floats to `destination`, by the threads of kWriters warps.
template <int KP, int Tile, bool Short>
__device__ __forceinline__ void WriteState(const std::byte* staged, std::byte* destination, DataType dtype, int key_dim,
                                           int value_dim, int columns, int thread) {
  using P = Plan<KP, Tile, Short>;
  const int element = dtype == DataType::kFloat32 ? 4 : 2;
  const std::int64_t row_bytes = static_cast<std::int64_t>(value_dim) * element;
  const auto* floats = reinterpret_cast<const float*>(staged);
  const int pieces = columns * element / 16;
  if (reinterpret_cast<std::uintptr_t>(destination) % 16 != 0 || row_bytes % 16 != 0) {
#pragma unroll 1
    for (int i = thread; i < key_dim * columns; i += kWriters * 32) {
      const int row = i / columns;
      const int column = i - row * columns;
      StoreElement(destination, static_cast<std::int64_t>(row) * value_dim + column, dtype,
                   floats[row * P::kStatePitch + column]);
    }
  } else if (dtype == DataType::kFloat32) {
    WriteRows<Tile / 4>(destination, row_bytes, key_dim, pieces, thread, [&](int row, int piece) {
      return *reinterpret_cast<const uint4*>(floats + row * P::kStatePitch + piece * 4);
    });
  } else {
    const bool is_bfloat16 = dtype == DataType::kBFloat16;
    WriteRows<Tile / 8>(destination, row_bytes, key_dim, pieces, thread, [&](int row, int piece) {
      const float* eight = floats + row * P::kStatePitch + piece * 8;
      return is_bfloat16 ? PackEight<__nv_bfloat16>(eight) : PackEight<__half>(eight);
    });
  }
}

/// Where one head's tile of a state lies.
__device__ __forceinline__ std::byte* TileOf(const StateReference& state, std::int64_t head, int column) {
  return static_cast<std::byte*>(state.data) +
         (head * state.head_stride + column) * (state.dtype == DataType::kFloat32 ? 4 : 2);
}

/// Warps 4-6: boundaries, then the final state.
template <int KP, int Tile, bool Short>
__device__ void WriteStates(const Context<KP, Tile, Short>& context, int thread) {
  using P = Plan<KP, Tile, Short>;
  const int num_householder = static_cast<int>(context.arguments->shape.num_householder);
  const std::int64_t heads = context.arguments->shape.heads;
  const int key_dim = context.arguments->shape.key_dim;
  const int value_dim = context.arguments->shape.value_dim;
  const std::int64_t head_elements = static_cast<std::int64_t>(key_dim) * value_dim;
  const int lane = thread % 32;
  RingPosition incoming;
  RingPosition outgoing(P::kIncomingBuffers);
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    const std::int64_t head = item.head;
    const int first_column = item.column;
    const int columns = min(Tile, value_dim - first_column);
    const CUtensorMap* map = sequence.boundary_map >= 0 ? context.maps() + sequence.boundary_map : nullptr;
    if (map != nullptr && context.arguments->uploaded_block != nullptr && thread == 0) ptx::AcquireTensorMap(map);
    int map_state = static_cast<int>(head);
    const std::uint64_t policy = ptx::UsedOnce();
    const DataType all_dtype = sequence.all_boundaries.dtype;
    const int all_element = all_dtype == DataType::kFloat32 ? 4 : 2;
    auto* of_all = static_cast<std::byte*>(sequence.all_boundaries.data) +
                   (head * head_elements + first_column) * static_cast<std::int64_t>(all_element);
    const std::int64_t of_all_stride = heads * head_elements * all_element;
    int finals = sequence.slot.data != nullptr || sequence.final_state.data != nullptr ? 2 : 0;
    BoundaryCursor cursor(sequence, context.boundaries(), num_householder);

    ptx::Wait(context.state_full(incoming.slot), incoming.parity);
    bool incoming_held = true;
#pragma unroll 1
    while (true) {
      const int chunk = cursor.Next();
      const bool is_final = chunk >= chunks;
      const bool loaded = chunk == 0 && !is_final;  // boundary 0 is the initial state as it was loaded
      if (!loaded && incoming_held) {
        ArriveAsWarp(context.state_empty(incoming.slot), lane);
        incoming.Advance(P::kIncomingBuffers);
        incoming_held = false;
      }
      if (is_final && finals == 0) break;
      if (!loaded) ptx::Wait(context.state_full(outgoing.slot), outgoing.parity);
      const std::byte* staged = context.template at<std::byte>(context.state(loaded ? incoming.slot : outgoing.slot));
      if (map != nullptr && !loaded && !is_final) {  // staged for the copy engine
        if (thread == 0) {
          const std::uint32_t boxes = context.state(outgoing.slot);
          ptx::StoreBox(map, boxes, first_column, map_state, policy);
          if (Tile == 64 && all_dtype == DataType::kFloat32 && columns > 32) {
            ptx::StoreBox(map, boxes + KP * 128, first_column + 32, map_state, policy);
          }
          ptx::WaitForStoredReads();
        }
        cursor.TakeOfAll(chunk);
      }
      map_state += is_final ? 0 : static_cast<int>(heads);
      // One place writes all other states, to spare the instruction cache.
#pragma unroll 1
      while (true) {
        std::byte* to = nullptr;
        DataType dtype = all_dtype;
        if (is_final) {
          if (finals == 0) break;
          const StateReference& state = finals == 2 ? sequence.slot : sequence.final_state;
          --finals;
          if (state.data == nullptr) continue;
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
        WriteState<KP, Tile, Short>(staged, to, dtype, key_dim, value_dim, columns, thread);
      }
      if (!loaded) {
        ArriveAsWarp(context.state_empty(outgoing.slot), lane);
        outgoing.Advance(P::kStateBuffers, P::kIncomingBuffers);
      }
      if (is_final) break;
    }
  });
}

/// Warp 7.
template <int KP, int Tile, bool Short>
__device__ void WriteValues(const Context<KP, Tile, Short>& context, int lane) {
  using P = Plan<KP, Tile, Short>;
  constexpr int kPieces = Tile / 8;  // of 16 bytes in a row
  constexpr int kRows = 32 / kPieces;
  constexpr int kBatch = 8;
  const std::int64_t heads = context.arguments->shape.heads;
  const int value_dim = context.arguments->shape.value_dim;
  const std::int64_t token_bytes = heads * value_dim * 2;
  const int row = lane / kPieces;
  const int piece = lane % kPieces;
  const std::uint64_t policy = ptx::UsedOnce();
  RingPosition position;
  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    if (sequence.v_new == nullptr) return;
    const int columns = min(Tile, value_dim - item.column);
    std::int64_t left = sequence.length;
    auto* tile = static_cast<std::byte*>(sequence.v_new) + (item.head * value_dim + item.column) * 2;
    const bool aligned = reinterpret_cast<std::uintptr_t>(tile) % 16 == 0;
    const bool inside = piece * 8 < columns;
#pragma unroll 1
    for (; left > 0; left -= kChunk) {
      const int rows = static_cast<int>(min(static_cast<std::int64_t>(kChunk), left));
      ptx::Wait(context.value_full(position.slot), position.parity);
      const auto* staged = context.template at<std::uint16_t>(context.values(position.slot));
      if (aligned) {
        std::byte* to = tile + row * token_bytes + piece * 16;
        const std::uint16_t* from = staged + row * P::kValuePitch + piece * 8;
#pragma unroll 1
        for (int first = row; first < rows; first += kBatch * kRows) {
          uint4 held[kBatch];
#pragma unroll
          for (int i = 0; i < kBatch; ++i) held[i] = *reinterpret_cast<const uint4*>(from + i * kRows * P::kValuePitch);
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            if (first + i * kRows < rows && inside) ptx::StoreGlobal16(to, held[i], policy);
            to += kRows * token_bytes;
          }
          from += kBatch * kRows * P::kValuePitch;
        }
      } else {
#pragma unroll 1
        for (int i = lane; i < rows * columns; i += 32) {
          const int r = i / columns;
          const int column = i - r * columns;
          *reinterpret_cast<std::uint16_t*>(tile + r * token_bytes + column * 2) = staged[r * P::kValuePitch + column];
        }
      }
      tile += kChunk * token_bytes;
      ArriveAsWarp(context.value_empty(position.slot), lane);
      position.Advance(P::kValueBuffers);
    }
  });
}

/// S^T of one thread: per group of 64 keys, element 4j + 2h + b is key 8j + 2 (lane % 4) + b and value column
/// column + 8h, column being 16 warp + lane/4 in tiles of 64 and 8 warp + lane/4 in tiles of 32, where h = 1 is unused.
template <int KP>
using StateFragment = float[KP / 64][32];

__device__ __forceinline__ constexpr int KeyOf(int element) { return (element / 4) * 8 + element % 2; }
__device__ __forceinline__ constexpr int HalfOf(int element) { return (element / 2) % 2; }

template <int KP, int Tile, bool Short>
__device__ __forceinline__ void StageState(float* staged, const StateFragment<KP>& s, int column, int pair) {
  using P = Plan<KP, Tile, Short>;
  float* base = staged + 2 * pair * P::kStatePitch + column;
#pragma unroll
  for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (HalfOf(i) < P::kHalves) base[(group * 64 + KeyOf(i)) * P::kStatePitch + HalfOf(i) * 8] = s[group][i];
    }
  }
}

/// As StageState, in boxes of 32 columns with the copy engine's 128-byte swizzle.
template <int KP, int Tile, bool Short>
__device__ __forceinline__ void StageBoxes(std::byte* boxes, const StateFragment<KP>& s, int column, int pair) {
  using P = Plan<KP, Tile, Short>;
#pragma unroll
  for (int half = 0; half < P::kHalves; ++half) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int v = column + half * 8;
      const int row = 2 * pair + odd;  // of every eight
      auto* base = reinterpret_cast<float*>(boxes + v / 32 * KP * 128 + row * 128 + ((v % 32 / 4) ^ row) * 16) + v % 4;
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
        for (int j = 0; j < 8; ++j) base[(group * 64 + j * 8) * 32] = s[group][j * 4 + half * 2 + odd];
      }
    }
  }
}

template <int KP, int Tile, bool Short>
__device__ __forceinline__ void ReadState(const float* staged, StateFragment<KP>& s, int column, int pair) {
  using P = Plan<KP, Tile, Short>;
  const float* base = staged + 2 * pair * P::kStatePitch + column;
#pragma unroll
  for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s[group][i] = HalfOf(i) < P::kHalves ? base[(group * 64 + KeyOf(i)) * P::kStatePitch + HalfOf(i) * 8] : 0.0F;
    }
  }
}

/// Warps 0-3.
template <typename T, int KP, int Tile, bool Short>
__device__ void ComputeProducts(const Context<KP, Tile, Short>& context, int thread) {
  using P = Plan<KP, Tile, Short>;
  constexpr int kHalves = P::kHalves;
  const LaunchShape& shape = context.arguments->shape;
  const int num_householder = Uniform(static_cast<int>(shape.num_householder));
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int pair = lane % 4;
  const int column = warp * 8 * kHalves + lane / 4;

  // Four 8x8 matrices move at a time, their rows tokens or keys and their columns pieces of 16 bytes: in tiles of 64
  // two blocks of rows by two pieces, in tiles of 32 four blocks of rows by one. This lane addresses one row of one
  // matrix.
  constexpr int kBlocks = 4 / kHalves;
  const int matrix_row = (kHalves == 2 ? lane / 16 : lane / 8) * 8 + lane % 8;
  const int matrix_piece = kHalves == 2 ? warp * 2 + (lane / 8) % 2 : warp;
  const std::uint32_t u_offset =
      matrix_row * Tile * 2 + ((matrix_piece ^ (kHalves == 2 ? matrix_row % 8 : matrix_row / 2 % 4)) * 16);
  const std::uint32_t value_offset = matrix_row * P::kValuePitch * 2 + matrix_piece * 16;

  // The left operands of the products under way; rows beyond a narrow tile stay zero. They are read so that the
  // compiler does not know it, or it would put zeros into the registers again for every product.
  constexpr int kGroupsInFlight = P::kGroups == 2 ? 2 : 1;
  std::uint32_t left[kGroupsInFlight][4][4];
#pragma unroll
  for (int i = 0; i < kGroupsInFlight * 16; ++i) left[i / 16][i / 4 % 4][i % 4] = *context.zero();

  constexpr std::uint32_t kBothSigns = 0x80008000U;
  StateFragment<KP> s;
  float x[32];
  float decay = 1.0F;
  float2 factor[8];
  RingPosition position;
  RingPosition value;
  RingPosition incoming;
  RingPosition outgoing(P::kIncomingBuffers);

  const auto arrive = [&](std::uint32_t barrier) { ArriveAsWarp(barrier, lane); };
  const auto load_decay = [&](int stage) { decay = context.factors(stage)[kChunk]; };
  const auto load_factors = [&](int stage) {
    const float* factors = context.factors(stage);
#pragma unroll
    for (int j = 0; j < 8; ++j) factor[j] = *reinterpret_cast<const float2*>(factors + j * 8 + pair * 2);
  };
  // u of a chunk as it is stored, then negated into the sum of -x.
  constexpr int kFragments = 2 * kHalves;
  std::uint32_t fragments[kFragments][4];
  const auto load_u = [&](const RingPosition& at) {
    ptx::Wait(context.w_full(at.slot), at.parity);
    const std::uint32_t address = context.u(at.slot) + u_offset;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) ptx::LoadTransposed(fragments[i], address + i * kBlocks * 8 * Tile * 2);
  };
  const auto start_x = [&] {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 both = Unpack<T>(fragments[i][j] ^ kBothSigns);
        const int element = kHalves == 2 ? i * 8 + j * 2 : i * 16 + j * 4;
        x[element] = both.x;
        x[element + 1] = both.y;
      }
    }
  };
  const auto start_chunk = [&](const RingPosition& at) {
    start_x();
    if constexpr (!P::kSplit) {
      load_decay(at.slot);
      load_factors(at.slot);
    }
  };
  // Fragments of 16-bit elements, one register per 8x8 matrix, to rows in shared memory.
  const auto store_fragments = [&](std::uint32_t address, int row_bytes, const std::uint32_t(&stored)[4][4]) {
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      const std::uint32_t to = address + i * kBlocks * 8 * row_bytes;
      if constexpr (kHalves == 2) {
        ptx::StoreTransposed(to, stored[i][0], stored[i][1], stored[i][2], stored[i][3]);
      } else {
        ptx::StoreTransposed(to, stored[2 * i][0], stored[2 * i][2], stored[2 * i + 1][0], stored[2 * i + 1][2]);
      }
    }
  };
  const auto stage_state = [&](bool in_boxes) {
    ptx::Wait(context.state_empty(outgoing.slot), outgoing.parity ^ 1);
    if (in_boxes) {
      StageBoxes<KP, Tile, Short>(context.template at<std::byte>(context.state(outgoing.slot)), s, column, pair);
      ptx::FenceAsyncProxy();
    } else {
      StageState<KP, Tile, Short>(context.template at<float>(context.state(outgoing.slot)), s, column, pair);
    }
    arrive(context.state_full(outgoing.slot));
    outgoing.Advance(P::kStateBuffers, P::kIncomingBuffers);
  };

  ForEachItem(context, lane, [&](const Item& item) {
    const SequenceDescriptor& sequence = item.sequence;
    const int chunks = Chunks(sequence);
    const bool wants_values = Uniform(sequence.v_new != nullptr) != 0;
    // Boundaries leave in boxes for the copy engine where there is a map: in float32, or as the first product's
    // operand.
    const bool in_boxes = Uniform(sequence.boundary_map) >= 0;
    const bool packed_boundaries =
        in_boxes && Uniform(static_cast<int>(sequence.all_boundaries.dtype)) != static_cast<int>(DataType::kFloat32);
    const bool has_final = Uniform(sequence.slot.data != nullptr || sequence.final_state.data != nullptr) != 0;
    BoundaryCursor cursor(sequence, context.boundaries(), num_householder);
    cursor.Pass(0);  // boundary 0 is not ours to store

    ptx::Wait(context.state_full(incoming.slot), incoming.parity);
    ReadState<KP, Tile, Short>(context.template at<const float>(context.state(incoming.slot)), s, column, pair);
    arrive(context.state_empty(incoming.slot));
    incoming.Advance(P::kIncomingBuffers);

#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] = 0.0F;
    if (chunks > 0) {
      load_u(position);
      start_chunk(position);
    }
    // The stage before, released when there is time. Wide tiles are for throughput and release at once.
    constexpr bool kReleasesLate = Tile == 32;
    int finished = -1;
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      const bool wants_boundary = cursor.Next() == c;
      const bool more = c + 1 < chunks;
      RingPosition next = position;
      next.Advance(P::kStages);

      // -x^T = S^T w^T - u^T, no more than 128 keys of the left operand in registers at a time.
      const std::uint64_t w_operand = ptx::OperandDescriptor(context.w(position.slot));
#pragma unroll
      for (int first = 0; first < P::kGroups; first += kGroupsInFlight) {
#pragma unroll
        for (int group = 0; group < kGroupsInFlight; ++group) {
          if (first + group >= P::kGroups) break;
#pragma unroll
          for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (i % 2 >= kHalves) continue;
              const float* from = &s[first + group][step * 8 + i * 2];
              left[group][step][i] = Pack<T>(from[0], from[1]);
              asm volatile("" : "+r"(left[group][step][i])::"memory");
            }
          }
        }
        if (first == 0) ptx::WaitForProducts();  // none is in flight; lets the compiler see that S may be read below
        ptx::PinRegisters(x);
        ptx::ProductFence();
#pragma unroll
        for (int group = 0; group < kGroupsInFlight; ++group) {
          if (first + group >= P::kGroups) break;
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            ptx::AddProductTransposed<T>(x, left[group][step],
                                         w_operand + (first + group) * (kBoxBytes >> 4) + step * (32 >> 4));
          }
        }
        ptx::CommitProducts();
        // In the shadow of the product: the boundary leaves, in the operand's form if that will do.
        if (wants_boundary && packed_boundaries) {
          if (first == 0) ptx::Wait(context.state_empty(outgoing.slot), outgoing.parity ^ 1);
          const std::uint32_t to = context.state(outgoing.slot) + u_offset;
#pragma unroll
          for (int group = 0; group < kGroupsInFlight; ++group) {
            if (first + group >= P::kGroups) break;
            store_fragments(to + (first + group) * 64 * Tile * 2, Tile * 2, left[group]);
          }
          if (first + kGroupsInFlight >= P::kGroups) {
            ptx::FenceAsyncProxy();
            arrive(context.state_full(outgoing.slot));
            outgoing.Advance(P::kStateBuffers, P::kIncomingBuffers);
          }
        }
        if (first + kGroupsInFlight < P::kGroups) {
          ptx::WaitForProducts();
          ptx::PinRegisters(x);
        }
      }
      if (wants_boundary && !packed_boundaries) stage_state(in_boxes);

      // Then S decays, and the next u is on its way.
      if (finished >= 0) arrive(context.k_empty(finished));
      if constexpr (P::kSplit) {
        ptx::Wait(context.k_full(position.slot), position.parity);
        load_decay(position.slot);
      }
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if (HalfOf(i) < kHalves) s[group][i] *= decay;
        }
      }
      if (!P::kSplit && more) load_u(next);
      ptx::WaitForProducts();
      ptx::PinRegisters(x);
      if constexpr (P::kSplit) {
        load_factors(position.slot);  // only now: registers are short
        arrive(context.w_empty(position.slot));
      }

      // S^T += x^T k.
      const std::uint64_t k_operand = ptx::OperandDescriptor(context.k(position.slot));
      constexpr int kStepsInFlight = P::kGroups == 4 ? 2 : 4;  // of 16 tokens; as many as there are registers for
      std::uint32_t v_new[4][4] = {};
#pragma unroll
      for (int first = 0; first < 4; first += kStepsInFlight) {
#pragma unroll
        for (int step = 0; step < kStepsInFlight; ++step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (i % 2 >= kHalves) continue;
            const float low = x[(first + step) * 8 + i * 2];
            const float high = x[(first + step) * 8 + i * 2 + 1];
            const float2 scale = factor[(first + step) * 2 + i / 2];
            v_new[first + step][i] = Pack<T>(low, high);
            left[0][step][i] = Pack<T>(low * scale.x, high * scale.y);
            asm volatile("" : "+r"(left[0][step][i])::"memory");
          }
        }
#pragma unroll
        for (int group = 0; group < P::kGroups; ++group) ptx::PinRegisters(s[group]);
        ptx::ProductFence();
#pragma unroll
        for (int step = 0; step < kStepsInFlight; ++step) {
#pragma unroll
          for (int group = 0; group < P::kGroups; ++group) {
            ptx::AddProduct<T>(s[group], left[0][step],
                               k_operand + group * (kBoxBytes >> 4) + (first + step) * (16 * 128 >> 4));
          }
        }
        ptx::CommitProducts();
        if (first + kStepsInFlight < 4) ptx::WaitForProducts();
      }

      // In the shadow of the second product: the next x starts, v_new leaves.
      if (!P::kSplit && more) start_chunk(next);
      if (wants_values) {
        ptx::Wait(context.value_empty(value.slot), value.parity ^ 1);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) v_new[step][i] ^= kBothSigns;
        }
        store_fragments(context.values(value.slot) + value_offset, P::kValuePitch * 2, v_new);
        arrive(context.value_full(value.slot));
        value.Advance(P::kValueBuffers);
      }
      if (wants_boundary) cursor.Pass(c);
      ptx::WaitForProducts();
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) ptx::PinRegisters(s[group]);
      if (kReleasesLate) {
        finished = position.slot;
      } else {
        arrive(context.k_empty(position.slot));
      }
      position = next;
      if (P::kSplit && more) {
        load_u(next);
        start_chunk(next);
      }
    }
    if (finished >= 0) arrive(context.k_empty(finished));
    if (has_final) stage_state(false);
  });
}

template <typename T, int KP, int Tile, bool Short>
__global__ void __launch_bounds__(kThreads, 1) Recurrence(const __grid_constant__ HopperArguments arguments) {
  using P = Plan<KP, Tile, Short>;
  extern __shared__ std::byte shared[];
  Context<KP, Tile, Short> context;
  context.base = shared + (1024 - ptx::SharedAddress(shared) % 1024) % 1024;
  context.shared = ptx::SharedAddress(context.base);
  context.arguments = &arguments;

  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = Uniform(thread / 32);
  if (thread == 0) {
    for (int i = 0; i < P::kStages; ++i) {
      ptx::InitBarrier(context.w_full(i), P::kSplit ? 1 : 1 + kArrivalsOfWarp);
      ptx::InitBarrier(context.w_empty(i), 4 * kArrivalsOfWarp);
      if constexpr (P::kSplit) {
        ptx::InitBarrier(context.k_full(i), 1 + kArrivalsOfWarp);
        ptx::InitBarrier(context.k_empty(i), 4 * kArrivalsOfWarp);
      }
    }
    for (int i = 0; i < kItemSlots; ++i) {
      ptx::InitBarrier(context.item_full(i), kArrivalsOfWarp);
      ptx::InitBarrier(context.item_empty(i), 11 * kArrivalsOfWarp);
    }
    for (int i = 0; i < P::kValueBuffers; ++i) {
      ptx::InitBarrier(context.value_full(i), 4 * kArrivalsOfWarp);
      ptx::InitBarrier(context.value_empty(i), kArrivalsOfWarp);
    }
    for (int i = 0; i < P::kStateBuffers; ++i) {
      const bool incoming = i < P::kIncomingBuffers;
      ptx::InitBarrier(context.state_full(i), incoming ? 32 : 4 * kArrivalsOfWarp);
      ptx::InitBarrier(context.state_empty(i), (incoming ? 4 + kWriters : kWriters) * kArrivalsOfWarp);
    }
    ptx::FenceBarrierInit();
    *context.zero() = 0;
  }
  __syncthreads();

  if (warp < 4) {
    ptx::RaiseRegisters<248>();
    ComputeProducts<T, KP, Tile, Short>(context, thread);
  } else if (warp < 8) {
    ptx::LowerRegisters<128>();
    if (warp < 4 + kWriters) {
      WriteStates<KP, Tile, Short>(context, thread - 128);
    } else {
      WriteValues<KP, Tile, Short>(context, lane);
    }
  } else {
    ptx::LowerRegisters<128>();
    if (warp == 8) {
      LoadChunks<KP, Tile, Short>(context, lane);
    } else if (warp == 9) {
      ComputeFactors<KP, Tile, Short>(context, lane);
    } else if (warp == 10) {
      LoadInitialStates<KP, Tile, Short>(context, lane);
    } else {
      HandOutItems<KP, Tile, Short>(context, lane);
    }
  }
}

}  // namespace gdpcache::kernels::cuda::hopper

#endif  // GDPCACHE_KERNELS_CUDA_RECURRENCE_HOPPER_CUH_
