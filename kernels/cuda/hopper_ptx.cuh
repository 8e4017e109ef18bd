#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_PTX_CUH_
#define GDPCACHE_KERNELS_CUDA_HOPPER_PTX_CUH_

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

/// The sm_90a instructions the tuned recurrence uses, one function each.
namespace gdpcache::kernels::cuda::ptx {

__device__ __forceinline__ std::uint32_t SharedAddress(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Barriers and copies take addresses in shared memory, as SharedAddress gives them.

__device__ __forceinline__ void InitBarrier(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/// Makes initialised barriers visible to the asynchronous copies.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void Arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void ArriveExpectBytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// Arrives once this thread's cp.async copies so far have landed.
__device__ __forceinline__ void ArriveAfterCopies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Waits until the phase of parity `parity` is complete.
__device__ __forceinline__ void Wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies.

__device__ __forceinline__ void AcquireTensorMap(const CUtensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

/// A cache policy for what is used only once: it makes room in the L2 cache first, so that operands which several
/// thread blocks read stay there.
__device__ __forceinline__ std::uint64_t UsedOnce() {
  std::uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// A cache policy for what other thread blocks will use again.
__device__ __forceinline__ std::uint64_t UsedAgain() {
  std::uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// One box of a [length, heads, width] tensor into shared memory; rows and columns outside the tensor become zero.
__device__ __forceinline__ void LoadBox(std::uint32_t destination, const CUtensorMap* map, std::uint32_t barrier,
                                        int column, int head, int row, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(row), "l"(policy)
      : "memory");
}

/// Queues the store of one box of [count, keys, width] states; what lies outside the tensor is left out.
__device__ __forceinline__ void StoreBox(const CUtensorMap* map, std::uint32_t source, int column, int state,
                                         std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], [%1], %5;" ::"l"(
          map),
      "r"(source), "r"(column), "r"(0), "r"(state), "l"(policy)
      : "memory");
}

/// Waits until this thread's queued stores have read their sources.
__device__ __forceinline__ void WaitForStoredReads() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ __forceinline__ void StoreGlobal16(void* destination, uint4 value, std::uint64_t policy) {
  asm volatile(
      "st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(__cvta_generic_to_global(destination)),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "l"(policy));
}

__device__ __forceinline__ void CopyAsync16(std::uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source) : "memory");
}

/// Orders this thread's ordinary shared-memory accesses before asynchronous ones.
__device__ __forceinline__ void FenceAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Matrix fragments.

__device__ __forceinline__ void LoadTransposed(std::uint32_t (&fragment)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void StoreTransposed(std::uint32_t address, std::uint32_t r0, std::uint32_t r1,
                                                std::uint32_t r2, std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Warpgroup products.

/// Descriptor of an operand in rows of 128 bytes with the 128-byte swizzle, groups of 8 rows 1,024 bytes apart.
__device__ __forceinline__ std::uint64_t OperandDescriptor(std::uint32_t shared_address) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kGroupStride = std::uint64_t{1024 >> 4} << 32;
  constexpr std::uint64_t kLeadingStride = std::uint64_t{1} << 16;  // not used with one swizzle atom per row
  return kSwizzle128 | kGroupStride | kLeadingStride | ((shared_address & 0x3ffffU) >> 4);
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
#define GDPCACHE_PRODUCT(TYPE, TRANSPOSED)                                                              \
  asm volatile(                                                                                               \
      "{\n.reg .pred accumulate;\nsetp.eq.b32 accumulate, 1, 1;\n"                                            \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "                                         \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                               \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                     \
      "{%32, %33, %34, %35}, %36, accumulate, 1, 1, " TRANSPOSED ";\n}\n"                              \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),       \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),            \
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),            \
        "+f"(d[30]), "+f"(d[31])                                                                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// clang-format on

/// d[64, 64] += a[64, 16] . b^T, with b stored as 64 rows of 16 elements (contraction along the row).
template <typename T>
__device__ __forceinline__ void AddProductTransposed(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b);
template <>
__device__ __forceinline__ void AddProductTransposed<__nv_bfloat16>(float (&d)[32], const std::uint32_t (&a)[4],
                                                                    std::uint64_t b) {
  GDPCACHE_PRODUCT("bf16", "0");
}
template <>
__device__ __forceinline__ void AddProductTransposed<__half>(float (&d)[32], const std::uint32_t (&a)[4],
                                                             std::uint64_t b) {
  GDPCACHE_PRODUCT("f16", "0");
}

/// d[64, 64] += a[64, 16] . b, with b stored as 16 rows of 64 elements (contraction across rows).
template <typename T>
__device__ __forceinline__ void AddProduct(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b);
template <>
__device__ __forceinline__ void AddProduct<__nv_bfloat16>(float (&d)[32], const std::uint32_t (&a)[4],
                                                          std::uint64_t b) {
  GDPCACHE_PRODUCT("bf16", "1");
}
template <>
__device__ __forceinline__ void AddProduct<__half>(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
  GDPCACHE_PRODUCT("f16", "1");
}

#undef GDPCACHE_PRODUCT

// Registers of a warpgroup.

template <int kCount>
__device__ __forceinline__ void RaiseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void LowerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace gdpcache::kernels::cuda::ptx

#endif  // GDPCACHE_KERNELS_CUDA_HOPPER_PTX_CUH_
