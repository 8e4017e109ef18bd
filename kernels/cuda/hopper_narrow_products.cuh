#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_NARROW_PRODUCTS_CUH_
#define GDPCACHE_KERNELS_CUDA_HOPPER_NARROW_PRODUCTS_CUH_

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/hopper_items.cuh"
#include "kernels/cuda/hopper_wgmma.cuh"

/// The chain itself for narrow value tiles, by one warpgroup: x = u - w S, then S = S 2^g + k^T x. The accumulators of
/// both products stay in registers. All operands come from shared memory: w and k as they were loaded, S and x rounded
/// to 16 bits, in high precision as two such terms. The width of the tile is the width of the products, so these are
/// short; the exchange costs two barriers a chunk.
namespace gdpcache::kernels::cuda::hopper {

/// Accumulators: element 4 j + 2 h + b of a thread is row 16 warp + lane / 4 + 8 h (of 64 tokens or keys) and value
/// column 8 j + 2 (lane % 4) + b.
template <typename T, typename P>
class NarrowProducts {
 public:
  __device__ __forceinline__ NarrowProducts(const Context<P>& context, int thread)
      : context_(context),
        thread_(thread),
        lane_(thread % 32),
        num_householder_(Uniform(static_cast<int>(context.arguments->shape.num_householder))),
        outgoing_(P::kIncomingBuffers) {
    const int warp = thread / 32;
    const int row = lane_ % 16;
    tile_offset_ = (warp * 16 + row) * P::kRowBytes + SwizzledPiece<P::kRowBytes>(row, lane_ / 16) * 16;
    const int state_row = lane_ / 4;
    const int pair = lane_ % 4;
    state_offset_ = (warp * 16 + state_row) * P::kStateRowBytes +
                    SwizzledPiece<P::kStateRowBytes>(state_row, pair / 2) * 16 + pair % 2 * 8;
    first_row_ = warp * 16 + state_row;
    asm volatile("" : "+r"(num_householder_));  // or it would be fetched again for every boundary
  }

  __device__ __forceinline__ void Run(const Item& item) {
    Task task(item.sequence, context_.boundaries(), num_householder_);

    ptx::Wait(context_.state_full(incoming_.slot), incoming_.parity);
    ReadState(context_.state(incoming_.slot));
    ArriveAsWarp(context_.state_empty(incoming_.slot), lane_);
    incoming_.Advance(P::kIncomingBuffers);

    if (task.chunks > 0) {
      ptx::Wait(context_.w_full(position_.slot), position_.parity);
      StartChunk();
    }
    int finished = -1;  // the stage of the chunk before
    int finished_value = 0;
#pragma unroll 1
    for (int c = 0; c < task.chunks; ++c) {
      const bool wants_boundary = task.cursor.Next() == c;
      const bool more = c + 1 < task.chunks;
      const int rows = more ? kChunk : task.last_rows;
      const int stage = position_.slot;
      const std::uint32_t parity = position_.parity;
      const int value = value_.slot;
      position_.Advance(P::kStages);
      value_.Advance(P::kValueSlots);

      // S as an operand, which a boundary in the same format can be too.
      const bool leaves_packed = wants_boundary && task.packed;
      std::uint32_t operand = context_.state_term(0);
      if (leaves_packed) {
        ptx::Wait(context_.state_empty(outgoing_.slot), outgoing_.parity ^ 1);
        operand = context_.state(outgoing_.slot);
      }
      StoreStateTerms(operand);
      SyncForProducts();
      if (P::kSplit && finished >= 0) {  // where stages are few, at once
        ReleaseStage(finished);
        SendValues(finished_value);
      }

      // x = u - w S.
      ptx::WaitForProducts();  // none is in flight; lets the compiler see that S may be read below
      ptx::PinRegisters(x_);
      ptx::ProductFence();
      const std::uint64_t w = ptx::OperandDescriptor<128>(context_.w(stage));
#pragma unroll
      for (int term = 0; term < P::kTerms; ++term) {
        const std::uint64_t right = ptx::OperandDescriptor<P::kRowBytes>(term == 0 ? operand : context_.state_term(1));
#pragma unroll
        for (int step = 0; step < P::kGroups * 4; ++step) {
          ptx::SubtractProduct<T>(x_, w + ptx::DescriptorStep(step / 4 * kBoxBytes + step % 4 * 32),
                                  right + ptx::DescriptorStep(step * 16 * P::kRowBytes));
        }
      }
      ptx::CommitProducts();

      // In its shadow: what is ready leaves, v_new last since it is in no hurry, and S decays.
      if (!P::kSplit && finished >= 0) ReleaseStage(finished);
      if (leaves_packed) SendState();
      if constexpr (P::kSplit) {
        ptx::Wait(context_.k_full(stage), parity);
        LoadFactors(stage);
      }
      if (rows < kChunk) ClearKeysFrom(context_, stage, rows, thread_);
      const bool leaves_whole = wants_boundary && !task.packed;
      if (leaves_whole) StageState();
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
        for (int i = 0; i < P::kTile / 2; ++i) s_[group][i] *= decay_;
        ptx::PinRegisters(s_[group]);
      }
      if (!P::kSplit && more) ptx::Wait(context_.w_full(position_.slot), position_.parity);
      if (!P::kSplit && finished >= 0) SendValues(finished_value);
      ptx::WaitForProducts();
      ptx::PinRegisters(x_);

      // x as an operand.
      StoreXTerms(rows);
      SyncForProducts();
      if (P::kSplit) ArriveInCluster<P>(context_.w_empty(stage), thread_);

        // S = S 2^g + k^T x.
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) ptx::PinRegisters(s_[group]);
      ptx::ProductFence();
      const std::uint64_t k = ptx::OperandDescriptor<128>(context_.k(stage));
#pragma unroll
      for (int term = 0; term < P::kTerms; ++term) {
        const std::uint64_t right = ptx::OperandDescriptor<P::kRowBytes>(context_.x_term(term));
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int group = 0; group < P::kGroups; ++group) {
            ptx::AddTransposedProduct<T>(s_[group], k + ptx::DescriptorStep(group * kBoxBytes + step * 16 * 128),
                                         right + ptx::DescriptorStep(step * 16 * P::kRowBytes));
          }
        }
      }
      ptx::CommitProducts();

      // In its shadow: v_new takes the place of u, the next chunk's u comes.
      if (leaves_whole) SendState();
      if (wants_boundary) task.cursor.Pass(c);
      Packed values;
#pragma unroll
      for (int i = 0; i < P::kTile / 4; ++i) values[i] = Pack<T>(x_[2 * i], x_[2 * i + 1]);
      if (task.wants_values) StoreTile(context_.values(value), values);
      if (more) {
        if (P::kSplit) ptx::Wait(context_.w_full(position_.slot), position_.parity);
        StartChunk();
      }
      ptx::WaitForProducts();
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) ptx::PinRegisters(s_[group]);
      finished = stage;
      finished_value = value;
    }

    if (task.has_final) StageState();
    SyncForProducts();
    if (finished >= 0) {
      ReleaseStage(finished);
      SendValues(finished_value);
    }
    if (task.has_final) SendState();
  }

 private:
  using Values = float[P::kTile / 2];
  using Packed = std::uint32_t[P::kTile / 4];  // pairs of columns

  /// Shows what all product warps have stored to the products and to the copy engine.
  __device__ __forceinline__ void SyncForProducts() {
    ptx::FenceAsyncProxy();
    ptx::SyncThreads(1, kProductThreads);
  }

  // Once all product warps have passed such a barrier, one thread speaks for them.

  /// Gives a chunk's stage back to the loaders.
  __device__ __forceinline__ void ReleaseStage(int stage) { ArriveInCluster<P>(context_.k_empty(stage), thread_); }

  /// Hands a chunk's v_new to the writer.
  __device__ __forceinline__ void SendValues(int value) {
    if (kAllArrive || thread_ == 0) ptx::Arrive(context_.value_full(value));
  }

  /// Hands what is in the outgoing buffer to the writers.
  __device__ __forceinline__ void SendState() {
    if (kAllArrive || thread_ == 0) ptx::Arrive(context_.state_full(outgoing_.slot));
    outgoing_.Advance(P::kStateBuffers, P::kIncomingBuffers);
  }

  /// Rows of a tile, two pieces of 16 bytes at a time.
  __device__ __forceinline__ void StoreTile(std::uint32_t tile, const Packed& packed) {
#pragma unroll
    for (int i = 0; i < P::kTile / 16; ++i) {
      ptx::StoreMatrices(tile + (tile_offset_ ^ (i * 32)), packed[i * 4], packed[i * 4 + 1], packed[i * 4 + 2],
                         packed[i * 4 + 3]);
    }
  }

  /// `values` rounded to 16-bit elements; in high precision what is lost in that remains.
  __device__ __forceinline__ void PackTerm(const Values& values, Packed& packed, Values& rest) {
#pragma unroll
    for (int i = 0; i < P::kTile / 4; ++i) {
      packed[i] = Pack<T>(values[2 * i], values[2 * i + 1]);
      if constexpr (P::kTerms == 2) {
        const float2 rounded = Unpack<T>(packed[i]);
        rest[2 * i] = values[2 * i] - rounded.x;
        rest[2 * i + 1] = values[2 * i + 1] - rounded.y;
      }
    }
  }

  __device__ __forceinline__ void StoreStateTerms(std::uint32_t first_term) {
#pragma unroll
    for (int group = 0; group < P::kGroups; ++group) {
      Packed packed;
      Values rest;
      PackTerm(s_[group], packed, rest);
      StoreTile(first_term + group * 64 * P::kRowBytes, packed);
      if constexpr (P::kTerms == 2) {
        Values none;
        PackTerm(rest, packed, none);
        StoreTile(context_.state_term(1) + group * 64 * P::kRowBytes, packed);
      }
    }
  }

  /// x with each token's factor; zero for rows that are not the sequence's own.
  __device__ __forceinline__ void StoreXTerms(int rows) {
    std::uint32_t kept[2] = {0xffffffffU, 0xffffffffU};
    if (rows < kChunk) {
      kept[0] = first_row_ < rows ? 0xffffffffU : 0;
      kept[1] = first_row_ + 8 < rows ? 0xffffffffU : 0;
    }
    Values scaled;
#pragma unroll
    for (int i = 0; i < P::kTile / 2; ++i) scaled[i] = x_[i] * factor_[i / 2 % 2];
    Packed packed;
    Values rest;
    PackTerm(scaled, packed, rest);
#pragma unroll
    for (int i = 0; i < P::kTile / 4; ++i) packed[i] &= kept[i % 2];
    StoreTile(context_.x_term(0), packed);
    if constexpr (P::kTerms == 2) {
      Values none;
      PackTerm(rest, packed, none);
#pragma unroll
      for (int i = 0; i < P::kTile / 4; ++i) packed[i] &= kept[i % 2];
      StoreTile(context_.x_term(1), packed);
    }
  }

  /// 2^(g[last] - g) of this thread's tokens and 2^g[last].
  __device__ __forceinline__ void LoadFactors(int stage) {
    const float* factors = context_.factors(stage);
    decay_ = factors[kChunk];
    factor_[0] = factors[first_row_];
    factor_[1] = factors[first_row_ + 8];
  }

  /// u of the stage at position_ as the start of x.
  __device__ __forceinline__ void StartChunk() {
    const std::uint32_t u = context_.values(value_.slot);
    std::uint32_t pairs[P::kTile / 16][4];
#pragma unroll
    for (int i = 0; i < P::kTile / 16; ++i) ptx::LoadMatrices(pairs[i], u + (tile_offset_ ^ (i * 32)));
    if constexpr (!P::kSplit) LoadFactors(position_.slot);
#pragma unroll
    for (int i = 0; i < P::kTile / 4; ++i) {
      const float2 both = Unpack<T>(pairs[i / 4][i % 4]);
      x_[i * 2] = both.x;
      x_[i * 2 + 1] = both.y;
    }
  }

  /// Calls `access(two, group, i)` for elements i and i + 1 of S and where they lie in a staged state.
  template <typename Access>
  __device__ __forceinline__ void ForStagedPairs(std::uint32_t state, Access access) {
#pragma unroll
    for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll
      for (int j = 0; j < P::kTile / 8; ++j) {
        constexpr int kPairs = P::kStateColumns / 8;
        const std::uint32_t at = state + j / kPairs * P::kStateBoxBytes + group * 64 * P::kStateRowBytes +
                                 (state_offset_ ^ (j % kPairs * 32));
        auto* row = context_.template at<float2>(at);
        access(row, group, j * 4);
        access(row + P::kStateRowBytes, group, j * 4 + 2);  // eight rows of pairs below
      }
    }
  }

  __device__ __forceinline__ void ReadState(std::uint32_t state) {
    ForStagedPairs(state, [&](const float2* pair, int group, int i) {
      const float2 both = *pair;
      s_[group][i] = both.x;
      s_[group][i + 1] = both.y;
    });
  }

  __device__ __forceinline__ void StageState() {
    ptx::Wait(context_.state_empty(outgoing_.slot), outgoing_.parity ^ 1);
    ForStagedPairs(context_.state(outgoing_.slot), [&](float2* pair, int group, int i) {
      *pair = {s_[group][i], s_[group][i + 1]};
    });
  }

  const Context<P>& context_;
  const int thread_;
  const int lane_;
  int num_householder_;
  int tile_offset_;   // of this lane's rows in tiles of value columns
  int state_offset_;  // of this lane's first element in float32 boxes
  int first_row_;

  float s_[P::kGroups][P::kTile / 2];
  Values x_;
  float decay_ = 1.0F;
  float factor_[2] = {};

  RingPosition position_;
  RingPosition value_;
  RingPosition incoming_;
  RingPosition outgoing_;
};

}  // namespace gdpcache::kernels::cuda::hopper

#endif  // GDPCACHE_KERNELS_CUDA_HOPPER_NARROW_PRODUCTS_CUH_
