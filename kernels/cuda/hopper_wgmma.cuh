#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_WGMMA_CUH_
#define GDPCACHE_KERNELS_CUDA_HOPPER_WGMMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

/// Warpgroup products of 64 x N x 16 elements, asynchronous, sums in float32 registers. Left operands come from
/// registers or, like all right ones, from shared memory.
namespace gdpcache::kernels::cuda::ptx {

/// Descriptor of an operand in rows of kRowBytes (32, 64 or 128), swizzled over them.
template <int kRowBytes>
__device__ __forceinline__ std::uint64_t OperandDescriptor(std::uint32_t shared_address) {
  constexpr std::uint64_t kSwizzle = std::uint64_t{kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3} << 62;
  constexpr std::uint64_t kGroupStride = std::uint64_t{8 * kRowBytes >> 4} << 32;  // from eight rows to the next eight
  constexpr std::uint64_t kLeadingStride = std::uint64_t{1} << 16;  // not used with one swizzle atom per row
  return kSwizzle | kGroupStride | kLeadingStride | ((shared_address & 0x3ffffU) >> 4);
}

/// The step from a descriptor to one `bytes` further.
__device__ __forceinline__ constexpr std::uint64_t DescriptorStep(int bytes) {
  return static_cast<std::uint64_t>(bytes >> 4);
}

__device__ __forceinline__ void ProductFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits for all products committed so far.
__device__ __forceinline__ void WaitForProducts() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

/// Keeps the compiler from moving accesses of `registers` across this point.
template <int N>
__device__ __forceinline__ void PinRegisters(float (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// clang-format off
// The instruction for one size; TAIL is the left operand's sign, the right one's and which of the operands that come
// from shared memory run across their rows.
#define GDPCACHE_WGMMA(SIZE, TYPE, D, A, B, TAIL, OUTPUTS, ...)                                                \
  asm volatile(                                                                                                \
      "{\n.reg .pred accumulate;\nsetp.eq.b32 accumulate, 1, 1;\n"                                             \
      "wgmma.mma_async.sync.aligned.m64n" SIZE "k16.f32." TYPE "." TYPE " {" D "}, " A ", " B ", "             \
      "accumulate, " TAIL ";\n}\n"                                                                             \
      : OUTPUTS : __VA_ARGS__)
#define GDPCACHE_FOUR(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define GDPCACHE_OUTPUTS_16 GDPCACHE_FOUR(0), GDPCACHE_FOUR(4)
#define GDPCACHE_OUTPUTS_32 GDPCACHE_OUTPUTS_16, GDPCACHE_FOUR(8), GDPCACHE_FOUR(12)
#define GDPCACHE_OUTPUTS_64                                                                                    \
  GDPCACHE_OUTPUTS_32, GDPCACHE_FOUR(16), GDPCACHE_FOUR(20), GDPCACHE_FOUR(24), GDPCACHE_FOUR(28)
#define GDPCACHE_D_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GDPCACHE_D_32 GDPCACHE_D_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GDPCACHE_D_64                                                                                          \
  GDPCACHE_D_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
// Both operands in shared memory.
#define GDPCACHE_WGMMA_SHARED(TYPE, TAIL)                                                                      \
  if constexpr (kRegisters == 8) {                                                                             \
    GDPCACHE_WGMMA("16", TYPE, GDPCACHE_D_16, "%8", "%9", TAIL, GDPCACHE_OUTPUTS_16, "l"(a), "l"(b));          \
  } else {                                                                                                     \
    GDPCACHE_WGMMA("32", TYPE, GDPCACHE_D_32, "%16", "%17", TAIL, GDPCACHE_OUTPUTS_32, "l"(a), "l"(b));        \
  }
// The left one in registers.
#define GDPCACHE_WGMMA_REGISTERS(TYPE, TAIL)                                                                   \
  GDPCACHE_WGMMA("64", TYPE, GDPCACHE_D_64, "{%32, %33, %34, %35}", "%36", TAIL, GDPCACHE_OUTPUTS_64,          \
                 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#define GDPCACHE_FOR_TYPE(PRODUCT, TAIL)                                                                       \
  if constexpr (std::is_same<T, __half>::value) {                                                              \
    PRODUCT("f16", TAIL)                                                                                       \
  } else {                                                                                                     \
    PRODUCT("bf16", TAIL)                                                                                      \
  }
// clang-format on

/// d[64, N] -= a . b, with a stored as 64 rows of 16 elements and b as 16 rows of N.
template <typename T, int kRegisters>
__device__ __forceinline__ void SubtractProduct(float (&d)[kRegisters], std::uint64_t a, std::uint64_t b) {
  static_assert(kRegisters == 8 || kRegisters == 16);
  GDPCACHE_FOR_TYPE(GDPCACHE_WGMMA_SHARED, "-1, 1, 0, 1")
}

/// d[64, N] += a^T . b, with a stored as 16 rows of 64 elements and b as 16 rows of N.
template <typename T, int kRegisters>
__device__ __forceinline__ void AddTransposedProduct(float (&d)[kRegisters], std::uint64_t a, std::uint64_t b) {
  static_assert(kRegisters == 8 || kRegisters == 16);
  GDPCACHE_FOR_TYPE(GDPCACHE_WGMMA_SHARED, "1, 1, 1, 1")
}

/// d[64, 64] -= a . b^T, with b stored as 64 rows of 16 elements.
template <typename T>
__device__ __forceinline__ void SubtractProduct(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
  GDPCACHE_FOR_TYPE(GDPCACHE_WGMMA_REGISTERS, "-1, 1, 0")
}

/// d[64, 64] += a . b, with b stored as 16 rows of 64 elements.
template <typename T>
__device__ __forceinline__ void AddProduct(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
  GDPCACHE_FOR_TYPE(GDPCACHE_WGMMA_REGISTERS, "1, 1, 1")
}

#undef GDPCACHE_FOR_TYPE
#undef GDPCACHE_WGMMA_REGISTERS
#undef GDPCACHE_WGMMA_SHARED
#undef GDPCACHE_D_64
#undef GDPCACHE_D_32
#undef GDPCACHE_D_16
#undef GDPCACHE_OUTPUTS_64
#undef GDPCACHE_OUTPUTS_32
#undef GDPCACHE_OUTPUTS_16
#undef GDPCACHE_FOUR
#undef GDPCACHE_WGMMA

}  // namespace gdpcache::kernels::cuda::ptx

#endif  // GDPCACHE_KERNELS_CUDA_HOPPER_WGMMA_CUH_
