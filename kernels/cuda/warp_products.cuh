#ifndef GDPCACHE_KERNELS_CUDA_WARP_PRODUCTS_CUH_
#define GDPCACHE_KERNELS_CUDA_WARP_PRODUCTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device_types.cuh"

/// Products of small matrices by one warp, for compute capability 8.0 and newer: [16, kDepth] on the left, of dtype
/// `Operand`, times [kDepth, 8] on the right, of the inputs' dtype T, summed in float32. A sum is [16, 8]: with g =
/// lane / 4 and t = lane % 4, a thread's four values are rows g, g, g + 8, g + 8 of columns 2t, 2t + 1, 2t, 2t + 1.
///
/// Sums become left sides of a next product: a left side lies in shared memory as 32 vectors of 16 bytes, one for each
/// lane, and StoreForRows and StoreForColumns put sums there, column tile after column tile. A left side stored "for
/// rows" goes with right sides loaded as rows, which are the 8 columns of [kDepth, 8] one after the other; one stored
/// "for columns" goes with right sides that lie as [kDepth, 8]. Strides are in elements. Loads are apart from products,
/// so that they can be far ahead.
namespace gdpcache::kernels::cuda {

/// bfloat16 and float16 operands on either side: one product. Rows of right sides are 16 bytes aligned and an odd
/// multiple of 16 bytes apart, so that no banks collide.
template <typename T>
struct RoundedProducts {
  using Operand = T;
  static constexpr int kDepth = 16;
  static constexpr int kChains = 1;

  struct Left {
    std::uint32_t values[4];
  };
  struct Right {
    std::uint32_t values[2];
  };

  static __device__ __forceinline__ Left LoadLeft(const T* left) {
    const uint4 vector = reinterpret_cast<const uint4*>(left)[threadIdx.x % 32];
    return {{vector.x, vector.y, vector.z, vector.w}};
  }

  /// The sums of column tile `tile`, 0 or 1, of a left side.
  static __device__ __forceinline__ void StoreForRows(T* left, int tile, const float (&sums)[4]) {
    reinterpret_cast<uint2*>(left)[threadIdx.x % 32 * 2 + tile] = {Pack<T>(sums[0], sums[1]),
                                                                   Pack<T>(sums[2], sums[3])};
  }
  static __device__ __forceinline__ void StoreForColumns(T* left, int tile, const float (&sums)[4]) {
    StoreForRows(left, tile, sums);
  }

  static __device__ __forceinline__ Right LoadRows(const T* rows, int stride) {
    const int lane = threadIdx.x % 16;
    Right right;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(right.values[0]), "=r"(right.values[1])
                 : "r"(SharedAddress(rows + lane % 8 * stride + lane / 8 * 8))
                 : "memory");
    return right;
  }
  static __device__ __forceinline__ Right LoadColumns(const T* columns, int stride) {
    Right right;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(right.values[0]), "=r"(right.values[1])
                 : "r"(SharedAddress(columns + threadIdx.x % 16 * stride))
                 : "memory");
    return right;
  }

  /// sums[i] += left . rights[i], in as many chains as a sum has.
  template <int kCount>
  static __device__ __forceinline__ void AddApart(float (&sums)[kCount][kChains][4], const Left& left,
                                                  const Right (&rights)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) Multiply(sums[i][0], left, rights[i]);
  }
  static __device__ __forceinline__ float Total(const float (&sums)[kChains][4], int i) { return sums[0][i]; }

  /// sums[i] += left . rights[i].
  template <int kCount>
  static __device__ __forceinline__ void Add(float (&sums)[kCount][4], const Left& left,
                                             const Right (&rights)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) Multiply(sums[i], left, rights[i]);
  }

 private:
  static __device__ __forceinline__ std::uint32_t SharedAddress(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
  }

  static __device__ __forceinline__ void Multiply(float (&sum)[4], const Left& left, const Right& right) {
    if constexpr (std::is_same_v<T, __half>) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(left.values[0]), "r"(left.values[1]), "r"(left.values[2]), "r"(left.values[3]), "r"(right.values[0]),
            "r"(right.values[1]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(left.values[0]), "r"(left.values[1]), "r"(left.values[2]), "r"(left.values[3]), "r"(right.values[0]),
            "r"(right.values[1]));
    }
  }
};

/// float32 on the left and any input dtype on the right, each float32 value as two of 11 bits that together have 21 or
/// more: two products where the input dtype has no more than 11 bits itself, three (all but low times low) for float32.
/// Rows of right sides are 32 bytes apart, modulo 128 (16 where T has two bytes), so that no banks collide.
template <typename T>
struct SplitProducts {
  using Operand = float;
  static constexpr int kDepth = 8;
  static constexpr int kChains = std::is_same_v<T, float> ? 3 : 2;

  struct Left {
    float values[4];
  };
  struct Right {
    float values[2];
  };

  static __device__ __forceinline__ Left LoadLeft(const float* left) {
    const float4 vector = reinterpret_cast<const float4*>(left)[threadIdx.x % 32];
    return {{vector.x, vector.y, vector.z, vector.w}};
  }

  /// The sums of the column tile that is the left side; tile is 0. Depths 2t and 2t + 1 take the places of t and t + 4,
  /// as they do in LoadRows.
  static __device__ __forceinline__ void StoreForRows(float* left, int /*tile*/, const float (&sums)[4]) {
    reinterpret_cast<float4*>(left)[threadIdx.x % 32] = {sums[0], sums[2], sums[1], sums[3]};
  }
  static __device__ __forceinline__ void StoreForColumns(float* left, int /*tile*/, const float (&sums)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int depth = 2 * Thread() + i;
      reinterpret_cast<float2*>(left)[(Group() * 4 + depth % 4) * 2 + depth / 4] = {sums[i], sums[i + 2]};
    }
  }

  static __device__ __forceinline__ Right LoadRows(const T* rows, int stride) {
    const T* at = rows + Group() * stride + 2 * Thread();
    if constexpr (std::is_same_v<T, float>) {
      const float2 pair = *reinterpret_cast<const float2*>(at);
      return {{pair.x, pair.y}};
    } else {
      const float2 pair = Unpack<T>(*reinterpret_cast<const std::uint32_t*>(at));
      return {{pair.x, pair.y}};
    }
  }
  static __device__ __forceinline__ Right LoadColumns(const T* columns, int stride) {
    const T* at = columns + Thread() * stride + Group();
    return {{ToFloat(at[0]), ToFloat(at[4 * stride])}};
  }

  /// sums[i] += left . rights[i], in as many chains as a sum has.
  template <int kCount>
  static __device__ __forceinline__ void AddApart(float (&sums)[kCount][kChains][4], const Left& left,
                                                  const Right (&rights)[kCount]) {
    const Bits<4> high = High(left.values);
    const Bits<4> low = Low(left.values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      Multiply(sums[i][0], high, High(rights[i].values));
      Multiply(sums[i][1], low, High(rights[i].values));
      if constexpr (kChains == 3) Multiply(sums[i][2], high, Low(rights[i].values));
    }
  }
  static __device__ __forceinline__ float Total(const float (&sums)[kChains][4], int i) {
    float rest = sums[1][i];
    if constexpr (kChains == 3) rest += sums[2][i];
    return sums[0][i] + rest;
  }

  /// sums[i] += left . rights[i]; small terms first, and sums in turn, since a product takes long.
  template <int kCount>
  static __device__ __forceinline__ void Add(float (&sums)[kCount][4], const Left& left,
                                             const Right (&rights)[kCount]) {
    const Bits<4> high = High(left.values);
    const Bits<4> low = Low(left.values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) Multiply(sums[i], low, High(rights[i].values));
    if constexpr (kChains == 3) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) Multiply(sums[i], high, Low(rights[i].values));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) Multiply(sums[i], high, High(rights[i].values));
  }

 private:
  template <int kCount>
  struct Bits {
    std::uint32_t values[kCount];
  };

  static __device__ __forceinline__ int Group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int Thread() { return threadIdx.x % 4; }

  /// The first 11 bits of each value, and what they leave. The product units ignore all bits but the first 11.
  template <int kCount>
  static __device__ __forceinline__ Bits<kCount> High(const float (&values)[kCount]) {
    Bits<kCount> bits;
#pragma unroll
    for (int i = 0; i < kCount; ++i) bits.values[i] = __float_as_uint(values[i]) & 0xffffe000U;
    return bits;
  }
  template <int kCount>
  static __device__ __forceinline__ Bits<kCount> Low(const float (&values)[kCount]) {
    const Bits<kCount> high = High(values);
    Bits<kCount> bits;
#pragma unroll
    for (int i = 0; i < kCount; ++i) bits.values[i] = __float_as_uint(values[i] - __uint_as_float(high.values[i]));
    return bits;
  }

  static __device__ __forceinline__ void Multiply(float (&sum)[4], const Bits<4>& left, const Bits<2>& right) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left.values[0]), "r"(left.values[1]), "r"(left.values[2]), "r"(left.values[3]), "r"(right.values[0]),
          "r"(right.values[1]));
  }
};

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_WARP_PRODUCTS_CUH_
