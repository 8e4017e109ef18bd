#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/recurrence_generic.h"
#include "kernels/cuda/warp_products.cuh"

namespace gdpcache::kernels::cuda {
namespace {

constexpr int kTile = 32;  // value columns of a thread block
constexpr int kWarps = 8;  // two halves of the tile times four shares of the tokens, or of the keys
constexpr int kThreads = kWarps * 32;
constexpr int kShares = kWarps / 2;
constexpr int kMinSlots = 2;
constexpr int kMaxSlots = 4;
constexpr int kFewKeys = 128;  // two kernels each, since many keys need many registers
constexpr int kManyKeys = 256;

constexpr int BlocksPerMultiprocessor(int max_keys) { return max_keys == kFewKeys ? 2 : 1; }

__host__ __device__ constexpr int RoundUp(int value, int step) { return (value + step - 1) / step * step; }

/// Sizes of what lies in shared memory, the same for every thread block of a launch. Strides in elements, the rest in
/// bytes.
struct Layout {
  int block_rows = 0;  // tokens of w or k that a slot takes
  int slots = 0;       // blocks in shared memory: one in use, the others on their way
  int row_stride = 0;  // of k and w
  int key_shift = 0;   // 2^that many threads load a row of k or w
  int u_offset = 0;    // in a slot
  int g_offset = 0;
  int slot_bytes = 0;
  int state_offset = 0;  // behind the slots
  int x_offset = 0;
  int total = 0;
};

/// The strides are those that warp_products.cuh wants.
template <typename T, typename Products>
struct Plan {
  static constexpr int kMaxBlockRows = 64;
  static constexpr int kTokenTiles = kMaxBlockRows / 8 / kShares;  // of one warp
  static constexpr int kUStride = kTile + 16 / sizeof(T);
  static constexpr int kUShift = sizeof(T) == 4 ? 3 : 2;

  static Layout LayOut(const LaunchShape& shape, int block_rows, int slots) {
    constexpr int kOperand = sizeof(typename Products::Operand);
    Layout layout;
    layout.block_rows = block_rows;
    layout.slots = slots;
    layout.row_stride = RoundUp(shape.key_dim, sizeof(T) == 4 ? 32 : 16) + 8;
    const int pieces = shape.key_dim * static_cast<int>(sizeof(T)) / 16;
    layout.key_shift = pieces <= 4 ? 2 : pieces <= 8 ? 3 : pieces <= 16 ? 4 : 5;
    layout.u_offset = block_rows * layout.row_stride * static_cast<int>(sizeof(T));
    layout.g_offset = layout.u_offset + block_rows * kUStride * static_cast<int>(sizeof(T));
    layout.slot_bytes = layout.g_offset + RoundUp(4 * (block_rows + 1), 16);
    layout.state_offset = slots * layout.slot_bytes;
    // As left sides of products: whole depths of 16 columns each, and one more of S, which is loaded but not used.
    const int depths = RoundUp(shape.key_dim, Products::kDepth) + Products::kDepth;
    layout.x_offset = layout.state_offset + kTile * depths * kOperand;
    layout.total = layout.x_offset + kTile * RoundUp(shape.chunk_size, Products::kDepth) * kOperand;
    return layout;
  }

  /// The largest blocks that fit, then as many slots as fit for that many thread blocks on a multiprocessor. The size
  /// of a block has a say in the order of sums, so that only shape and device decide it.
  static Layout LayOutWithin(const LaunchShape& shape, const DeviceLimits& device, int blocks) {
    constexpr int kReserved = 1024;  // in each thread block
    int rows = std::min(kMaxBlockRows, shape.chunk_size);
    while (rows > Products::kDepth && LayOut(shape, rows, kMinSlots).total > device.block_shared_bytes) rows /= 2;
    const int available = std::min(device.block_shared_bytes, device.shared_bytes / blocks - kReserved);
    int slots = kMinSlots;
    while (slots < kMaxSlots && LayOut(shape, rows, slots + 1).total <= available) ++slots;
    return LayOut(shape, rows, slots);
  }
};

/// 16 bytes on their way to shared memory; zeros, and nothing is read, where `wanted` is false.
__device__ __forceinline__ void CopyAsync16(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))), "l"(from), "r"(wanted ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void CopyAsync4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
               :
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}

/// Until at most `pending` of the thread's groups of copies are under way.
__device__ __forceinline__ void WaitForCopies(int pending) {
  static_assert(kMaxSlots == 4);
  if (pending == 0) {
    asm volatile("cp.async.wait_group 0;" : : : "memory");
  } else if (pending == 1) {
    asm volatile("cp.async.wait_group 1;" : : : "memory");
  } else {
    asm volatile("cp.async.wait_group 2;" : : : "memory");
  }
}

__device__ __forceinline__ bool Aligned16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Puts the first `valid` of `rows` rows of `columns` elements, at most kColumns, on their way to shared memory, and
/// zeros into the others; moves `from` behind them. `fast`: every row begins at a multiple of 16 bytes and is one long;
/// then 2^shift threads share a row.
template <int kColumns, typename T>
__device__ __forceinline__ void LoadRows(T* to, int to_stride, const T*& from, std::int64_t from_stride, int rows,
                                         int valid, int columns, int shift, bool fast) {
  constexpr int kPiece = 16 / sizeof(T);
  constexpr int kPieces = kColumns / kPiece > 32 ? kColumns / kPiece / 32 : 1;  // of a row, of one thread
  if (fast) {
    const int column = (threadIdx.x & ((1 << shift) - 1)) * kPiece;
    const int first = threadIdx.x >> shift;
    const int step = kThreads >> shift;
    const T* source = from + first * from_stride + column;
    T* target = to + first * to_stride + column;
    const std::int64_t source_step = step * from_stride;
    const int target_step = step * to_stride;
    if (column < columns) {
#pragma unroll 2
      for (int row = first; row < rows; row += step) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          if (piece == 0 || column + piece * 32 * kPiece < columns) {
            CopyAsync16(target + piece * 32 * kPiece, source + piece * 32 * kPiece, row < valid);
          }
        }
        source += source_step;
        target += target_step;
      }
    }
  } else {
    for (int row = threadIdx.x / 32; row < rows; row += kWarps) {
      for (int column = threadIdx.x % 32; column < columns; column += 32) {
        to[row * to_stride + column] = row < valid ? from[row * from_stride + column] : FromFloat<T>(0.0F);
      }
    }
  }
  from += valid * from_stride;
}

/// The blocks of rows of one head of a sequence in the order they are needed: those of a chunk's w, with u and g, then
/// those of its k.
template <typename T, typename Sizes, int kMaxKeys>
class Loader {
 public:
  __device__ Loader(const LaunchShape& shape, const Layout& layout, const SequenceDescriptor& sequence,
                    std::int64_t head, int first_column, int columns)
      : shape_(shape),
        layout_(layout),
        w_(static_cast<const T*>(sequence.w) + head * shape.key_dim),
        k_(static_cast<const T*>(sequence.k) + head * shape.key_dim),
        u_(static_cast<const T*>(sequence.u) + head * shape.value_dim + first_column),
        g_(sequence.g == nullptr ? nullptr : sequence.g + head),
        left_(sequence.length),
        columns_(columns),
        fast_keys_(shape.key_dim * sizeof(T) % 16 == 0 && Aligned16(sequence.w) && Aligned16(sequence.k)),
        fast_values_(shape.value_dim * sizeof(T) % 16 == 0 && Aligned16(sequence.u)) {}

  /// Puts the next block on its way to `slot`, if there is one.
  __device__ void Load(std::byte* slot) {
    if (left_ > 0) {
      const int count = static_cast<int>(min(left_, static_cast<std::int64_t>(shape_.chunk_size)));  // of the chunk
      const int valid = min(layout_.block_rows, count - row_);
      const T* from = of_w_ ? w_ : k_;
      LoadRows<kMaxKeys>(reinterpret_cast<T*>(slot), layout_.row_stride, from, shape_.heads * shape_.key_dim,
                         layout_.block_rows, valid, shape_.key_dim, layout_.key_shift, fast_keys_);
      (of_w_ ? w_ : k_) = from;
      if (of_w_) {
        LoadRows<kTile>(reinterpret_cast<T*>(slot + layout_.u_offset), Sizes::kUStride, u_,
                        shape_.heads * shape_.value_dim, valid, valid, columns_, Sizes::kUShift, fast_values_);
        if (g_ != nullptr) {  // and behind them that of the chunk's last row
          const int thread = threadIdx.x;
          if (thread <= valid) {
            CopyAsync4(
                reinterpret_cast<float*>(slot + layout_.g_offset) + (thread == valid ? layout_.block_rows : thread),
                g_ + (thread == valid ? count - 1 - row_ : thread) * shape_.heads);
          }
          g_ += valid * shape_.heads;
        }
      }
      row_ += valid;
      if (row_ == count) {
        row_ = 0;
        if (!of_w_) left_ -= count;
        of_w_ = !of_w_;
      }
    }
    asm volatile("cp.async.commit_group;" : : : "memory");
  }

 private:
  const LaunchShape& shape_;
  const Layout& layout_;
  const T* w_;
  const T* k_;
  const T* u_;
  const float* g_;
  std::int64_t left_;  // rows of chunks whose k has not been loaded
  int columns_;
  int row_ = 0;  // of the chunk
  bool of_w_ = true;
  bool fast_keys_;
  bool fast_values_;
};

/// One (sequence, head, value tile) after another, on the transpose: S^T [tile, K] stays in the accumulators of
/// S^T += x^T k, each warp owning 16 columns of the tile and every fourth group of 8 keys; x^T = u^T - S^T w^T needs
/// all keys, so that S^T and x^T pass through shared memory, in the products' own precision. What a chunk adds to S is
/// summed from zero and then added once, since the product units round sums towards zero. Every sum has one order,
/// whatever the launch.
template <typename T, typename Products, int kMaxKeys>
__global__ void __launch_bounds__(kThreads, BlocksPerMultiprocessor(kMaxKeys))
    Recurrence(const __grid_constant__ LaunchShape shape, const SequenceDescriptor* sequences,
               std::int64_t sequence_count, const BoundaryDescriptor* boundaries,
               const __grid_constant__ Layout layout) {
  using Operand = typename Products::Operand;
  using Sizes = Plan<T, Products>;
  constexpr int kKeyTiles = kMaxKeys / 8 / kShares;  // 8 keys each, of one warp
  extern __shared__ uint4 shared[];
  auto* const slots = reinterpret_cast<std::byte*>(shared);
  auto* const state_operand = reinterpret_cast<Operand*>(slots + layout.state_offset);
  auto* const x_operand = reinterpret_cast<Operand*>(slots + layout.x_offset);

  const int K = shape.key_dim;
  const int V = shape.value_dim;
  const std::int64_t H = shape.heads;
  const std::int64_t tiles = (V + kTile - 1) / kTile;
  const std::int64_t items = sequence_count * H * tiles;
  const std::int64_t head_elements = static_cast<std::int64_t>(K) * V;
  const int warp = threadIdx.x / 32;
  const int half = warp % 2 * 16;  // first of the warp's columns
  const int share = warp / 2;
  const int group = threadIdx.x % 32 / 4;
  const int pair = threadIdx.x % 4 * 2;
  const std::int64_t value_row = H * V;
  constexpr int kTiles = Products::kDepth / 8;     // of columns, in a left side
  constexpr int kLeft = kTile * Products::kDepth;  // elements from one left side of a half to the next
  // Where the left side of the warp's half begins that column tile `tile` is in.
  const auto left_side = [&](Operand* operand, int tile) {
    return operand + tile / kTiles * kLeft + warp % 2 * kLeft / 2;
  };
  const int depths = (K + Products::kDepth - 1) / Products::kDepth;

  // What no load ever writes, rows' ends beyond K above all, must not be a NaN.
  for (int i = threadIdx.x; i < layout.total / 16; i += kThreads) shared[i] = uint4{0, 0, 0, 0};
  __syncthreads();

  for (std::int64_t number = blockIdx.x; number < items; number += gridDim.x) {
    const SequenceDescriptor& sequence = sequences[number / (H * tiles)];
    const std::int64_t head = number / tiles % H;
    const int first_column = static_cast<int>(number % tiles) * kTile;
    const int columns = min(kTile, V - first_column);
    T* v_new = sequence.v_new == nullptr ? nullptr : static_cast<T*>(sequence.v_new) + head * V + first_column;
    const bool has_g = sequence.g != nullptr;
    const bool wanted[2] = {v_new != nullptr && half + group < columns, v_new != nullptr && half + group + 8 < columns};

    Loader<T, Sizes, kMaxKeys> loader(shape, layout, sequence, head, first_column, columns);
    for (int slot = 0; slot < layout.slots - 1; ++slot) loader.Load(slots + slot * layout.slot_bytes);
    int in_use = 0;
    /// Waits for the next block, lets the one after those under way set out, and returns it.
    const auto next_block = [&]() -> const std::byte* {
      WaitForCopies(layout.slots - 2);
      __syncthreads();  // all have it, and are done with the slot that is filled now
      loader.Load(slots + (in_use == 0 ? layout.slots - 1 : in_use - 1) * layout.slot_bytes);
      const std::byte* block = slots + in_use * layout.slot_bytes;
      in_use = in_use + 1 == layout.slots ? 0 : in_use + 1;
      return block;
    };

    float state[kKeyTiles][4];
    // Calls `visit(value, offset)` with each of the thread's values of S and its place in a head's [K, V].
    const auto for_each_value = [&](auto&& visit) {
      int width = V;
      asm volatile("" : "+r"(width));  // or the compiler would keep every place in a register from chunk to chunk
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
        const int key = (share + i * kShares) * 8 + pair;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int column = half + group + j / 2 * 8;
          if (key + j % 2 < K && column < columns) {
            visit(state[i][j], (key + j % 2) * width + first_column + column);
          }
        }
      }
    };
    const auto write_state = [&](void* data, std::int64_t offset, DataType dtype) {
      if (dtype == DataType::kFloat32) {
        auto* to = static_cast<float*>(data) + offset;
        for_each_value([&](float value, int at) { to[at] = value; });
      } else {
        auto* to = static_cast<std::uint16_t*>(data) + offset;
        for_each_value([&](float value, int at) { StoreElement(to, at, dtype, value); });
      }
    };

#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) state[i][j] = 0.0F;
    }
    if (const StateReference& initial = sequence.initial_state; initial.data != nullptr) {
      const std::int64_t offset = head * initial.head_stride;
      for_each_value([&](float& value, int at) { value = LoadElement(initial.data, offset + at, initial.dtype); });
    }

    int next_single = 0;
    std::int64_t boundary = 0;
    std::int64_t chunks_until_boundary = 0;
    for (std::int64_t first = 0; first < sequence.length; first += shape.chunk_size) {
      const int count = static_cast<int>(min(static_cast<std::int64_t>(shape.chunk_size), sequence.length - first));

      if (chunks_until_boundary == 0) {
        chunks_until_boundary = shape.num_householder;
        StateReference to = sequence.all_boundaries;
        std::int64_t offset = (boundary * H + head) * head_elements;
        while (true) {
          if (to.data != nullptr) write_state(to.data, offset, to.dtype);
          if (next_single == sequence.boundary_count) break;
          const BoundaryDescriptor& single = boundaries[sequence.first_boundary + next_single];
          if (single.boundary != boundary) break;
          to = single.destination;
          offset = head * to.head_stride;
          ++next_single;
        }
        ++boundary;
      }
      --chunks_until_boundary;
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
        const int tile = share + i * kShares;
        const int key = tile * 8 + pair;
        if (tile * 8 >= K) break;
        const float values[4] = {key < K ? state[i][0] : 0.0F, key + 1 < K ? state[i][1] : 0.0F,
                                 key < K ? state[i][2] : 0.0F, key + 1 < K ? state[i][3] : 0.0F};
        Products::StoreForRows(left_side(state_operand, tile), tile % kTiles, values);
      }

      // x = u - w . S, times what decays until the chunk's end
      float decay = 1.0F;
      for (int row = 0; row < count; row += layout.block_rows) {
        const std::byte* block = next_block();
        const auto* w = reinterpret_cast<const T*>(block);
        const auto* u = reinterpret_cast<const T*>(block + layout.u_offset);
        const auto* g = reinterpret_cast<const float*>(block + layout.g_offset);
        const int valid = min(layout.block_rows, count - row);
        float sums[Sizes::kTokenTiles][Products::kChains][4] = {};
        const auto multiply = [&](auto& into) {
          constexpr int kCount = sizeof(into) / sizeof(into[0]);
          const Operand* s = left_side(state_operand, 0);
          // Shares for which there are no rows repeat the last.
          const T* rows = w + min(share * 8, layout.block_rows - 8) * layout.row_stride;
          typename Products::Left left = Products::LoadLeft(s);
          typename Products::Right rights[kCount];
#pragma unroll
          for (int i = 0; i < kCount; ++i) {
            rights[i] = Products::LoadRows(rows + i * kShares * 8 * layout.row_stride, layout.row_stride);
          }
#pragma unroll 2
          for (int depth = 0; depth < depths; ++depth) {
            const typename Products::Left left_now = left;
            typename Products::Right rights_now[kCount];
#pragma unroll
            for (int i = 0; i < kCount; ++i) rights_now[i] = rights[i];
            // One step ahead; the last one loads what nobody uses.
            s += kLeft;
            rows += Products::kDepth;
            left = Products::LoadLeft(s);
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
              rights[i] = Products::LoadRows(rows + i * kShares * 8 * layout.row_stride, layout.row_stride);
            }
            Products::AddApart(into, left_now, rights_now);
          }
        };
        if (layout.block_rows > Sizes::kMaxBlockRows / 2) {
          multiply(sums);
        } else {
          multiply(reinterpret_cast<float(&)[1][Products::kChains][4]>(sums));
        }
        const float g_last = has_g ? g[layout.block_rows] : 0.0F;
        decay = exp2f(g_last);
#pragma unroll
        for (int i = 0; i < Sizes::kTokenTiles; ++i) {
          const int token = (share + i * kShares) * 8 + pair;
          if (token - pair >= layout.block_rows) break;
          float x[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int t = token + j % 2;
            const int column = half + group + j / 2 * 8;
            const float value = ToFloat(u[t * Sizes::kUStride + column]) - Products::Total(sums[i], j);
            if (wanted[j / 2] && t < valid) v_new[t * value_row + column] = FromFloat<T>(value);
            x[j] = t < valid ? value * (has_g ? exp2f(g_last - g[t]) : 1.0F) : 0.0F;
          }
          const int tile = (row + token) / 8;
          Products::StoreForColumns(left_side(x_operand, tile), tile % kTiles, x);
        }
        v_new += valid * value_row;
      }

      // S = S 2^g[last] + k^T . x
      float added[kKeyTiles][4] = {};
      for (int row = 0; row < count; row += layout.block_rows) {
        const T* k = reinterpret_cast<const T*>(next_block());
        const int valid = min(layout.block_rows, count - row);
        const Operand* x = left_side(x_operand, row / 8);
        k += share * 8;
#pragma unroll 2
        for (int depth = 0; depth < valid; depth += Products::kDepth) {
          const typename Products::Left left = Products::LoadLeft(x + depth / Products::kDepth * kLeft);
          // Of the keys behind K nothing is kept.
          typename Products::Right rights[kKeyTiles];
#pragma unroll
          for (int i = 0; i < kKeyTiles; ++i) {
            rights[i] = Products::LoadColumns(k + depth * layout.row_stride + i * kShares * 8, layout.row_stride);
          }
          Products::Add(added, left, rights);
        }
      }
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) state[i][j] = fmaf(state[i][j], decay, added[i][j]);
      }
    }

    for (int i = 0; i < 2; ++i) {
      const StateReference& to = i == 0 ? sequence.slot : sequence.final_state;
      if (to.data != nullptr) write_state(to.data, head * to.head_stride, to.dtype);
    }
    __syncthreads();  // before the next item's loads
  }
}

/// The kernels for one dtype of the inputs and one way to multiply.
template <typename T, typename Products>
struct Variant {
  static cudaError_t Prepare(int shared_bytes) {
    for (const auto kernel : {Recurrence<T, Products, kFewKeys>, Recurrence<T, Products, kManyKeys>}) {
      const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

  static cudaError_t Launch(const LaunchShape& shape, const SequenceDescriptor* sequences, std::int64_t sequence_count,
                            const BoundaryDescriptor* boundaries, const DeviceLimits& device, cudaStream_t stream) {
    const std::int64_t items = sequence_count * shape.heads * ((shape.value_dim + kTile - 1) / kTile);
    const bool few = shape.key_dim <= kFewKeys;
    const int most = BlocksPerMultiprocessor(few ? kFewKeys : kManyKeys);
    const int blocks = items <= device.multiprocessors ? 1 : most;  // on a multiprocessor
    const Layout layout = Plan<T, Products>::LayOutWithin(shape, device, blocks);
    const auto kernel = few ? Recurrence<T, Products, kFewKeys> : Recurrence<T, Products, kManyKeys>;
    kernel<<<static_cast<unsigned>(std::min<std::int64_t>(items, blocks * device.multiprocessors)), kThreads,
             layout.total, stream>>>(shape, sequences, sequence_count, boundaries, layout);
    return cudaGetLastError();
  }
};

using Float32 = Variant<float, SplitProducts<float>>;
template <typename T>
using Rounded = Variant<T, RoundedProducts<T>>;
template <typename T>
using Precise = Variant<T, SplitProducts<T>>;

}  // namespace

cudaError_t PrepareGenericRecurrence(const DeviceLimits& device) {
  for (const auto prepare : {Float32::Prepare, Rounded<__nv_bfloat16>::Prepare, Precise<__nv_bfloat16>::Prepare,
                             Rounded<__half>::Prepare, Precise<__half>::Prepare}) {
    if (const cudaError_t error = prepare(device.block_shared_bytes); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchGenericRecurrence(const LaunchShape& shape, const SequenceDescriptor* sequences,
                                    std::int64_t sequence_count, const BoundaryDescriptor* boundaries,
                                    const DeviceLimits& device, cudaStream_t stream) {
  const bool high = shape.high_precision;
  switch (shape.input_dtype) {
    case DataType::kFloat32:
      return Float32::Launch(shape, sequences, sequence_count, boundaries, device, stream);
    case DataType::kBFloat16:
      return high ? Precise<__nv_bfloat16>::Launch(shape, sequences, sequence_count, boundaries, device, stream)
                  : Rounded<__nv_bfloat16>::Launch(shape, sequences, sequence_count, boundaries, device, stream);
    case DataType::kFloat16:
      return high ? Precise<__half>::Launch(shape, sequences, sequence_count, boundaries, device, stream)
                  : Rounded<__half>::Launch(shape, sequences, sequence_count, boundaries, device, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gdpcache::kernels::cuda
