#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/recurrence_generic.h"

namespace gdpcache::kernels::cuda {
namespace {

constexpr int kTile = 32;  // value columns of a thread block, one per lane
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kBlockRows = 32;  // tokens in shared memory at a time
constexpr int kRowsPerWarp = kBlockRows / kWarps;
constexpr int kKeysPerWarp = 8;
constexpr int kMaxChunk = 128;
constexpr int kMaxKeys = 256;

/// Keys rounded up so that every warp always has whole groups; the padding holds zeros.
__host__ __device__ constexpr int PaddedKeys(int key_dim) {
  return (key_dim + kWarps * kKeysPerWarp - 1) / (kWarps * kKeysPerWarp) * (kWarps * kKeysPerWarp);
}

constexpr int SharedBytes(int key_dim) {
  const int keys = PaddedKeys(key_dim);
  return 4 * (keys * kTile + kMaxChunk * kTile + kBlockRows * keys + kMaxChunk);
}

/// `count` rows of `width` elements into rows of `padded` floats; the padding and missing rows become zero.
template <typename T>
__device__ void LoadRows(float* rows, const T* source, std::int64_t stride, int count, int width, int padded) {
  for (int i = threadIdx.x; i < kBlockRows * padded; i += kThreads) {
    const int row = i / padded;
    const int column = i - row * padded;
    rows[i] = row < count && column < width ? ToFloat(source[row * stride + column]) : 0.0F;
  }
}

/// One (sequence, head, value tile) after another; S [K, tile], the chunk's x [tokens, tile] and 32 rows of w or k are
/// in shared memory. Every sum runs in ascending order of its index.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    Recurrence(LaunchShape shape, const SequenceDescriptor* sequences, std::int64_t sequence_count,
               const BoundaryDescriptor* boundaries) {
  extern __shared__ float4 shared[];
  const int K = shape.key_dim;
  const int V = shape.value_dim;
  const std::int64_t H = shape.heads;
  const int padded = PaddedKeys(K);
  auto* state = reinterpret_cast<float*>(shared);
  float* x = state + padded * kTile;
  float* rows = x + kMaxChunk * kTile;
  float* factors = rows + kBlockRows * padded;

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::int64_t tiles = (V + kTile - 1) / kTile;
  const std::int64_t items = sequence_count * H * tiles;
  const std::int64_t head_elements = static_cast<std::int64_t>(K) * V;

  for (std::int64_t number = blockIdx.x; number < items; number += gridDim.x) {
    const SequenceDescriptor& sequence = sequences[number / (H * tiles)];
    const std::int64_t head = number / tiles % H;
    const int column = static_cast<int>(number % tiles) * kTile + lane;
    const bool inside = column < V;

    const auto write_state = [&](void* data, std::int64_t offset, DataType dtype) {
      for (int key = warp; inside && key < K; key += kWarps) {
        StoreElement(data, offset + static_cast<std::int64_t>(key) * V + column, dtype, state[key * kTile + lane]);
      }
    };

    const StateReference& initial = sequence.initial_state;
    for (int key = warp; key < padded; key += kWarps) {
      float value = 0.0F;
      if (initial.data != nullptr && inside && key < K) {
        value = LoadElement(initial.data, head * initial.head_stride + static_cast<std::int64_t>(key) * V + column,
                            initial.dtype);
      }
      state[key * kTile + lane] = value;
    }
    __syncthreads();

    std::int64_t next_single = 0;
    const int chunk = shape.chunk_size;
    const std::int64_t chunks = (sequence.length + chunk - 1) / chunk;
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::int64_t first = c * chunk;
      const int count = static_cast<int>(min(static_cast<std::int64_t>(chunk), sequence.length - first));

      if (c % shape.num_householder == 0) {
        const std::int64_t boundary = c / shape.num_householder;
        const StateReference& all = sequence.all_boundaries;
        if (all.data != nullptr) write_state(all.data, (boundary * H + head) * head_elements, all.dtype);
        while (next_single < sequence.boundary_count &&
               boundaries[sequence.first_boundary + next_single].boundary == boundary) {
          const StateReference& single = boundaries[sequence.first_boundary + next_single].destination;
          write_state(single.data, head * single.head_stride, single.dtype);
          ++next_single;
        }
      }

      float decay = 1.0F;
      if (sequence.g != nullptr) {
        const float* g = sequence.g + first * H + head;
        const float g_last = g[(count - 1) * H];
        decay = exp2f(g_last);
        for (int t = threadIdx.x; t < count; t += kThreads) factors[t] = exp2f(g_last - g[t * H]);
      } else {
        for (int t = threadIdx.x; t < count; t += kThreads) factors[t] = 1.0F;
      }

      // x = u - w . S
      const T* w = static_cast<const T*>(sequence.w) + (first * H + head) * K;
      const T* u = static_cast<const T*>(sequence.u) + (first * H + head) * V;
      for (int block = 0; block < count; block += kBlockRows) {
        __syncthreads();
        LoadRows(rows, w + block * H * K, H * K, count - block, K, padded);
        __syncthreads();
        float sum[kRowsPerWarp] = {};
        const int row = warp * kRowsPerWarp;
        for (int key = 0; key < K; key += 4) {  // rows and state are zero beyond K
          float s[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) s[i] = state[(key + i) * kTile + lane];
#pragma unroll
          for (int r = 0; r < kRowsPerWarp; ++r) {
            const float4 weights = *reinterpret_cast<const float4*>(&rows[(row + r) * padded + key]);
            sum[r] = fmaf(weights.x, s[0], sum[r]);
            sum[r] = fmaf(weights.y, s[1], sum[r]);
            sum[r] = fmaf(weights.z, s[2], sum[r]);
            sum[r] = fmaf(weights.w, s[3], sum[r]);
          }
        }
#pragma unroll
        for (int r = 0; r < kRowsPerWarp; ++r) {
          const int t = block + row + r;
          if (t >= count) break;
          float value = 0.0F;
          if (inside) {
            const std::int64_t offset = t * H * V + column;
            value = ToFloat(u[offset]) - sum[r];
            if (sequence.v_new != nullptr) {
              static_cast<T*>(sequence.v_new)[(first * H + head) * V + offset] = FromFloat<T>(value);
            }
          }
          x[t * kTile + lane] = value * factors[t];
        }
      }

      // S = S 2^g[last] + k^T . x
      const T* k = static_cast<const T*>(sequence.k) + (first * H + head) * K;
      for (int block = 0; block < count; block += kBlockRows) {
        __syncthreads();
        LoadRows(rows, k + block * H * K, H * K, count - block, K, padded);
        __syncthreads();
        const int block_rows = min(kBlockRows, count - block);
        for (int key = warp * kKeysPerWarp; key < padded; key += kWarps * kKeysPerWarp) {
          float s[kKeysPerWarp];
#pragma unroll
          for (int i = 0; i < kKeysPerWarp; ++i) {
            s[i] = state[(key + i) * kTile + lane];
            if (block == 0) s[i] *= decay;
          }
          for (int t = 0; t < block_rows; ++t) {
            const float value = x[(block + t) * kTile + lane];
            const auto* keys = reinterpret_cast<const float4*>(&rows[t * padded + key]);
            const float4 low = keys[0];
            const float4 high = keys[1];
            s[0] = fmaf(low.x, value, s[0]);
            s[1] = fmaf(low.y, value, s[1]);
            s[2] = fmaf(low.z, value, s[2]);
            s[3] = fmaf(low.w, value, s[3]);
            s[4] = fmaf(high.x, value, s[4]);
            s[5] = fmaf(high.y, value, s[5]);
            s[6] = fmaf(high.z, value, s[6]);
            s[7] = fmaf(high.w, value, s[7]);
          }
#pragma unroll
          for (int i = 0; i < kKeysPerWarp; ++i) state[(key + i) * kTile + lane] = s[i];
        }
      }
      __syncthreads();
    }

    const StateReference& slot = sequence.slot;
    const StateReference& final_state = sequence.final_state;
    if (slot.data != nullptr) write_state(slot.data, head * slot.head_stride, slot.dtype);
    if (final_state.data != nullptr) write_state(final_state.data, head * final_state.head_stride, final_state.dtype);
    __syncthreads();
  }
}

template <typename T>
cudaError_t Launch(const LaunchShape& shape, const SequenceDescriptor* sequences, std::int64_t sequence_count,
                   const BoundaryDescriptor* boundaries, int multiprocessors, cudaStream_t stream) {
  const int shared_bytes = SharedBytes(shape.key_dim);
  const std::int64_t items = sequence_count * shape.heads * ((shape.value_dim + kTile - 1) / kTile);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(items, std::int64_t{8} * multiprocessors));
  Recurrence<T><<<blocks, kThreads, shared_bytes, stream>>>(shape, sequences, sequence_count, boundaries);
  return cudaGetLastError();
}

}  // namespace

cudaError_t PrepareGenericRecurrence() {
  for (const void* kernel :
       {reinterpret_cast<const void*>(Recurrence<float>), reinterpret_cast<const void*>(Recurrence<__nv_bfloat16>),
        reinterpret_cast<const void*>(Recurrence<__half>)}) {
    if (const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SharedBytes(kMaxKeys));
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t LaunchGenericRecurrence(const LaunchShape& shape, const SequenceDescriptor* sequences,
                                    std::int64_t sequence_count, const BoundaryDescriptor* boundaries,
                                    int multiprocessors, cudaStream_t stream) {
  switch (shape.input_dtype) {
    case DataType::kFloat32:
      return Launch<float>(shape, sequences, sequence_count, boundaries, multiprocessors, stream);
    case DataType::kBFloat16:
      return Launch<__nv_bfloat16>(shape, sequences, sequence_count, boundaries, multiprocessors, stream);
    case DataType::kFloat16:
      return Launch<__half>(shape, sequences, sequence_count, boundaries, multiprocessors, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gdpcache::kernels::cuda
