#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_WIDE_PRODUCTS_CUH_
#define GDPCACHE_KERNELS_CUDA_HOPPER_WIDE_PRODUCTS_CUH_

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/hopper_items.cuh"
#include "kernels/cuda/hopper_wgmma.cuh"

/// The chain itself for wide value tiles, by one warpgroup and transposed: x^T = u^T - S^T w^T, then
/// S^T = S^T 2^g + x^T k. The layout of an accumulator, packed in pairs, is that of a left operand, so S and x never
/// leave the registers, and no warp waits for another; w and k are right operands as loaded. A product always has 64
/// rows. A tile of 64 value columns fills them; a tile of 32 fills the first eight of each warp's sixteen and leaves
/// the others zero.
namespace gdpcache::kernels::cuda::hopper {

/// Accumulators: element 4 j + 2 h + b of a thread is token or key 8 j + 2 (lane % 4) + b and value column 16 warp +
/// lane / 4 + 8 h in tiles of 64, 8 warp + lane / 4 in tiles of 32, where h = 1 is unused.
template <typename T, typename P>
class WideProducts {
 public:
  __device__ __forceinline__ WideProducts(const Context<P>& context, int thread)
      : context_(context),
        thread_(thread),
        lane_(thread % 32),
        pair_(thread % 4),
        num_householder_(Uniform(static_cast<int>(context.arguments->shape.num_householder))),
        outgoing_(P::kIncomingBuffers) {
    const int warp = thread / 32;
    column_ = warp * 8 * kHalves + lane_ / 4;
    // Four 8x8 matrices move at a time, their rows tokens or keys and their columns pieces of 16 bytes: in tiles of 64
    // two blocks of rows by two pieces, in tiles of 32 four blocks of rows by one. This lane addresses one row of one
    // matrix.
    const int row = (kHalves == 2 ? lane_ / 16 : lane_ / 8) * 8 + lane_ % 8;
    const int piece = kHalves == 2 ? warp * 2 + lane_ / 8 % 2 : warp;
    tile_offset_ = row * P::kRowBytes + SwizzledPiece<P::kRowBytes>(row, piece) * 16;
    asm volatile("" : "+r"(num_householder_));  // or it would be fetched again for every boundary
    // Rows beyond a narrow tile stay zero. They are read so that the compiler does not know it, or it would put zeros
    // into the registers again for every product.
#pragma unroll
    for (int i = 0; i < P::kGroups * 16; ++i) left_[i / 16][i / 4 % 4][i % 4] = *context.zero();
  }

  __device__ __forceinline__ void Run(const Item& item) {
    Task task(item.sequence, context_.boundaries(), num_householder_);

    ptx::Wait(context_.state_full(incoming_.slot), incoming_.parity);
    ReadState(context_.state(incoming_.slot));
    ArriveAsWarp(context_.state_empty(incoming_.slot), lane_);
    incoming_.Advance(P::kIncomingBuffers);

#pragma unroll
    for (int i = 0; i < 32; ++i) x_[i] = 0.0F;
    mapped_ = Uniform(item.sequence.map_index >= 0) != 0;
    if (task.chunks > 0) StartChunk();
#pragma unroll 1
    for (int c = 0; c < task.chunks; ++c) {
      const bool wants_boundary = task.cursor.Next() == c;
      const bool more = c + 1 < task.chunks;
      const int rows = more ? kChunk : task.last_rows;
      const int stage = position_.slot;
      const int value = value_.slot;
      position_.Advance(P::kStages);
      value_.Advance(P::kValueSlots);

      // x^T = u^T - S^T w^T.
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (i % 2 < kHalves) SetLeft(group, step, i, s_[group][step * 8 + i * 2], s_[group][step * 8 + i * 2 + 1]);
          }
        }
      }
      ptx::WaitForProducts();  // none is in flight; lets the compiler see that S may be read below
      ptx::PinRegisters(x_);
      ptx::ProductFence();
      const std::uint64_t w = ptx::OperandDescriptor<128>(context_.w(stage));
#pragma unroll
      for (int step = 0; step < P::kGroups * 4; ++step) {
        ptx::SubtractProduct<T>(x_, left_[step / 4][step % 4],
                                w + ptx::DescriptorStep(step / 4 * kBoxBytes + step % 4 * 32));
      }
      ptx::CommitProducts();

      // In its shadow: a boundary leaves, in the operand's form if that will do, and S decays.
      if (wants_boundary) {
        ptx::Wait(context_.state_empty(outgoing_.slot), outgoing_.parity ^ 1);
        const std::uint32_t state = context_.state(outgoing_.slot);
        if (task.packed) {
#pragma unroll
          for (int group = 0; group < P::kGroups; ++group) StoreTile(state + group * 64 * P::kRowBytes, left_[group]);
        } else {
          StageState(state);
        }
        SendState();
        task.cursor.Pass(c);
      }
      if (rows < kChunk) ClearKeysFrom(context_, stage, rows, thread_);
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if (HalfOf(i) < kHalves) s_[group][i] *= decay_;
        }
      }
      if (rows < kChunk) {  // the products of all warps read what each has cleared
        ptx::FenceAsyncProxy();
        ptx::SyncThreads(1, kProductThreads);
      }
      ptx::WaitForProducts();
      ptx::PinRegisters(x_);

      // S^T = S^T 2^g + x^T k.
      std::uint32_t values[4][4] = {};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i % 2 >= kHalves) continue;
          const float low = x_[step * 8 + i * 2];
          const float high = x_[step * 8 + i * 2 + 1];
          const float2 factor = factor_[step * 2 + i / 2];
          values[step][i] = Pack<T>(low, high);
          SetLeft(0, step, i, low * factor.x, high * factor.y);
        }
      }
      if (rows < kChunk) DropTokensFrom(rows);
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) ptx::PinRegisters(s_[group]);
      ptx::ProductFence();
      const std::uint64_t k = ptx::OperandDescriptor<128>(context_.k(stage));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int group = 0; group < P::kGroups; ++group) {
          ptx::AddProduct<T>(s_[group], left_[0][step], k + ptx::DescriptorStep(group * kBoxBytes + step * 16 * 128));
        }
      }
      ptx::CommitProducts();

      // In its shadow: v_new takes the place of u, the next chunk's u comes.
      if (task.wants_values) StoreTile(context_.values(value), values);
      ArriveAsWarp(context_.value_full(value), lane_);
      if (more) StartChunk();
      ptx::WaitForProducts();
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) ptx::PinRegisters(s_[group]);
      __syncwarp();
      ArriveInCluster<P>(context_.w_empty(stage), lane_);
    }
    if (task.has_final) {
      ptx::Wait(context_.state_empty(outgoing_.slot), outgoing_.parity ^ 1);
      StageState(context_.state(outgoing_.slot));
      SendState();
    }
  }

 private:
  static constexpr int kHalves = P::kTile / 32;  // of the rows that products have, used
  static constexpr int kBlocks = 4 / kHalves;    // of eight rows that move at a time

  static __device__ __forceinline__ constexpr int HalfOf(int element) { return element / 2 % 2; }

  __device__ __forceinline__ void SetLeft(int group, int step, int i, float low, float high) {
    left_[group][step][i] = Pack<T>(low, high);
    asm volatile("" : "+r"(left_[group][step][i])::"memory");
  }

  /// Hands the outgoing buffer to the writers and the copy engine.
  __device__ __forceinline__ void SendState() {
    ptx::FenceAsyncProxy();
    ArriveAsWarp(context_.state_full(outgoing_.slot), lane_);
    outgoing_.Advance(P::kStateBuffers, P::kIncomingBuffers);
  }

  /// 64 rows of a tile from packed accumulators, one register per 8x8 matrix.
  __device__ __forceinline__ void StoreTile(std::uint32_t tile, const std::uint32_t (&packed)[4][4]) {
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      const std::uint32_t to = tile + tile_offset_ + i * kBlocks * 8 * P::kRowBytes;
      if constexpr (kHalves == 2) {
        ptx::StoreTransposed(to, packed[i][0], packed[i][1], packed[i][2], packed[i][3]);
      } else {
        ptx::StoreTransposed(to, packed[2 * i][0], packed[2 * i][2], packed[2 * i + 1][0], packed[2 * i + 1][2]);
      }
    }
  }

  /// Of the chunk at position_: u as the start of x, 2^(g[last] - g) of this thread's tokens and 2^g[last].
  __device__ __forceinline__ void StartChunk() {
    const int stage = position_.slot;
    ptx::Wait(context_.w_full(stage), position_.parity);
    if (!mapped_) ptx::FenceAsyncProxy();  // what did not come through the copy engine
    const std::uint32_t u = context_.values(value_.slot) + tile_offset_;
    std::uint32_t pairs[2 * kHalves][4];
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) ptx::LoadTransposed(pairs[i], u + i * kBlocks * 8 * P::kRowBytes);
    const float* factors = context_.factors(stage);
    decay_ = factors[kChunk];
#pragma unroll
    for (int j = 0; j < 8; ++j) factor_[j] = *reinterpret_cast<const float2*>(factors + j * 8 + pair_ * 2);
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 both = Unpack<T>(pairs[i][j]);
        const int element = kHalves == 2 ? i * 8 + j * 2 : i * 16 + j * 4;
        x_[element] = both.x;
        x_[element + 1] = both.y;
      }
    }
  }

  /// Takes tokens from `rows` on, which are not the sequence's own, out of the second product's left operand.
  __device__ __forceinline__ void DropTokensFrom(int rows) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int left = rows - (step * 16 + i / 2 * 8 + 2 * pair_);
        left_[0][step][i] &= left >= 2 ? 0xffffffffU : left == 1 ? 0xffffU : 0;
      }
    }
  }

  /// Calls `access(element, group, i)` with element i of S and where it lies in a staged state.
  template <typename Access>
  __device__ __forceinline__ void ForStaged(std::uint32_t state, Access access) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int column = column_ + half * 8;
        const int row = 2 * pair_ + odd;  // of every eight
        auto* first = context_.template at<float>(state + column / 32 * P::kStateBoxBytes + row * 128 +
                                                  SwizzledPiece<128>(row, column % 32 / 4) * 16) +
                      column % 4;
#pragma unroll
        for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
          for (int j = 0; j < 8; ++j) access(first + (group * 64 + j * 8) * 32, group, j * 4 + half * 2 + odd);
        }
      }
    }
  }

  __device__ __forceinline__ void ReadState(std::uint32_t state) {
    if constexpr (kHalves == 1) {
#pragma unroll
      for (int i = 0; i < P::kGroups * 32; ++i) s_[i / 32][i % 32] = 0.0F;
    }
    ForStaged(state, [&](const float* element, int group, int i) { s_[group][i] = *element; });
  }

  __device__ __forceinline__ void StageState(std::uint32_t state) {
    ForStaged(state, [&](float* element, int group, int i) { *element = s_[group][i]; });
  }

  const Context<P>& context_;
  const int thread_;
  const int lane_;
  const int pair_;
  int num_householder_;
  int column_;
  int tile_offset_;  // of this lane's row in tiles of value columns

  float s_[P::kGroups][32];
  float x_[32];
  std::uint32_t left_[P::kGroups][4][4];
  bool mapped_ = true;
  float decay_ = 1.0F;
  float2 factor_[8];

  RingPosition position_;
  RingPosition value_;
  RingPosition incoming_;
  RingPosition outgoing_;
};

}  // namespace gdpcache::kernels::cuda::hopper

#endif  // GDPCACHE_KERNELS_CUDA_HOPPER_WIDE_PRODUCTS_CUH_
