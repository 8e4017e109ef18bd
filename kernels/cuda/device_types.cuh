#ifndef GDPCACHE_KERNELS_CUDA_DEVICE_TYPES_CUH_
#define GDPCACHE_KERNELS_CUDA_DEVICE_TYPES_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/data_type.h"

/// Conversions between float and the storage types, rounding to nearest even.
namespace gdpcache::kernels::cuda {

template <typename T>
__device__ __forceinline__ float ToFloat(T value);
template <>
__device__ __forceinline__ float ToFloat(float value) {
  return value;
}
template <>
__device__ __forceinline__ float ToFloat(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <>
__device__ __forceinline__ float ToFloat(__half value) {
  return __half2float(value);
}

template <typename T>
__device__ __forceinline__ T FromFloat(float value);
template <>
__device__ __forceinline__ float FromFloat(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half FromFloat(float value) {
  return __float2half_rn(value);
}

/// `low` and `high` rounded to T and packed into one register, `low` in the low half.
template <typename T>
__device__ __forceinline__ std::uint32_t Pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t Pack<__nv_bfloat16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
__device__ __forceinline__ std::uint32_t Pack<__half>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// The halves of a packed register.
template <typename T>
__device__ __forceinline__ float2 Unpack(std::uint32_t packed);
template <>
__device__ __forceinline__ float2 Unpack<__nv_bfloat16>(std::uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000U)};
}
template <>
__device__ __forceinline__ float2 Unpack<__half>(std::uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

/// The value of an element of `dtype` given by its bits, and back. A NaN keeps its sign, which the conversion
/// instructions drop.
__device__ __forceinline__ float ValueOf(std::uint32_t bits, DataType dtype) {
  if (dtype == DataType::kFloat32) return __uint_as_float(bits);
  const float value = dtype == DataType::kBFloat16 ? __uint_as_float(bits << 16)
                                                   : __half2float(__ushort_as_half(static_cast<std::uint16_t>(bits)));
  return __uint_as_float((__float_as_uint(value) & 0x7fffffffU) | (bits & 0x8000U) << 16);
}

__device__ __forceinline__ std::uint32_t BitsOf(float value, DataType dtype) {
  if (dtype == DataType::kFloat32) return __float_as_uint(value);
  const std::uint32_t bits = dtype == DataType::kBFloat16 ? __bfloat16_as_ushort(FromFloat<__nv_bfloat16>(value))
                                                          : __half_as_ushort(FromFloat<__half>(value));
  return (bits & 0x7fffU) | ((__float_as_uint(value) >> 16) & 0x8000U);
}

/// Element `index` of an array of `dtype`.
__device__ __forceinline__ float LoadElement(const void* data, std::int64_t index, DataType dtype) {
  if (dtype == DataType::kFloat32) return static_cast<const float*>(data)[index];
  return ValueOf(static_cast<const std::uint16_t*>(data)[index], dtype);
}

__device__ __forceinline__ void StoreElement(void* data, std::int64_t index, DataType dtype, float value) {
  if (dtype == DataType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<std::uint16_t*>(data)[index] = static_cast<std::uint16_t>(BitsOf(value, dtype));
  }
}

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_DEVICE_TYPES_CUH_
