#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_PTX_CUH_
#define GDPCACHE_KERNELS_CUDA_HOPPER_PTX_CUH_

#include <cuda.h>

#include <cstdint>

/// The sm_90a instructions the tuned recurrence uses, one function each; the products are in hopper_wgmma.cuh.
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

/// Arrives at the barrier at the same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ void ArriveAt(std::uint32_t barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

/// Stores `value` at the same place in the shared memory of block `rank`, where its 8 bytes count for the barrier.
__device__ __forceinline__ void StoreAt(std::uint32_t address, std::int64_t value, std::uint32_t barrier,
                                        std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      ".reg .b32 remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %3;\n"
      "mapa.shared::cluster.u32 remote_barrier, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [remote], %1, [remote_barrier];\n"
      "}\n" ::"r"(address),
      "l"(value), "r"(barrier), "r"(rank)
      : "memory");
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

/// Waits for the `threads` threads that share barrier `id`.
__device__ __forceinline__ void SyncThreads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Clusters.

__device__ __forceinline__ std::uint32_t ClusterRank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Waits for every thread of the cluster.
__device__ __forceinline__ void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Copies.

__device__ __forceinline__ void AcquireTensorMap(const CUtensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

/// The L2 cache's usual policy.
__device__ __forceinline__ std::uint64_t UsedAsUsual() {
  std::uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// The policy for what other thread blocks will use again: it stays in the L2 cache before all else.
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

/// As LoadBox, into the same place of all blocks of the cluster that `blocks` has a bit for, each with its barrier.
__device__ __forceinline__ void LoadBoxForAll(std::uint32_t destination, const CUtensorMap* map, std::uint32_t barrier,
                                              int column, int head, int row, std::uint16_t blocks,
                                              std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(row), "h"(blocks), "l"(policy)
      : "memory");
}

/// One box of a [count, heads, keys, width] tensor of states into shared memory, from key 0 on.
__device__ __forceinline__ void LoadStateBox(std::uint32_t destination, const CUtensorMap* map, std::uint32_t barrier,
                                             int column, int head, int state) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(column), "r"(0), "r"(head), "r"(state)
      : "memory");
}

/// Queues the store of such a box; what lies outside the tensor is left out.
__device__ __forceinline__ void StoreStateBox(const CUtensorMap* map, std::uint32_t source, int column, int head,
                                              int state) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(source), "r"(column), "r"(0), "r"(head), "r"(state)
               : "memory");
}

/// Waits until this thread's queued stores have read their sources.
__device__ __forceinline__ void WaitForStoredReads() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ __forceinline__ void StoreGlobal16(void* destination, uint4 value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(destination)), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w));
}

/// Queues the copy of 16 bytes, or of as many zeros where there is no source.
__device__ __forceinline__ void CopyAsync16(std::uint32_t destination, const void* source, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(present ? 16 : 0)
               : "memory");
}

/// Queues the copy of 4 bytes, or of as many zeros where there is no source.
__device__ __forceinline__ void CopyAsync4(std::uint32_t destination, const void* source, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(destination), "l"(source), "r"(present ? 4 : 0)
               : "memory");
}

/// Makes a group of this thread's cp.async copies since the last.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits for all of this thread's groups of copies but the latest kGroups.
template <int kGroups>
__device__ __forceinline__ void WaitForCopiesBut() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// Waits for all of this thread's cp.async copies.
__device__ __forceinline__ void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Orders this thread's ordinary shared-memory accesses before asynchronous ones.
__device__ __forceinline__ void FenceAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Matrix fragments: four 8x8 matrices of 16-bit elements, whose rows of 16 bytes the lanes address in turn.

__device__ __forceinline__ void LoadMatrices(std::uint32_t (&fragment)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void LoadTransposed(std::uint32_t (&fragment)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void StoreMatrices(std::uint32_t address, std::uint32_t r0, std::uint32_t r1,
                                              std::uint32_t r2, std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

__device__ __forceinline__ void StoreTransposed(std::uint32_t address, std::uint32_t r0, std::uint32_t r1,
                                                std::uint32_t r2, std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

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
