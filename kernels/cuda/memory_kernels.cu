#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/memory_kernels.h"

namespace gdpcache::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kPieces = 2;  // 16-byte accesses a thread has in flight
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kCopyBlocks = 3;  // on a multiprocessor; one more would not leave enough registers

// A part of a state is what a thread block copies, in elements of either width. Many short-lived blocks copy faster
// than few that loop.
constexpr std::int64_t kPartElements = std::int64_t{kThreads} * kPieces * 4;
constexpr std::int64_t kMaxCopies = 65535;  // side by side; a grid has no more rows

__device__ __forceinline__ bool Aligned16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Up to kThreads x kPieces vectors, all loads before the first store.
__device__ __forceinline__ void CopyVectors(uint4* destination, const uint4* source, std::int64_t vectors) {
  uint4 held[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const std::int64_t index = threadIdx.x + i * kThreads;
    held[i] = source != nullptr && index < vectors ? source[index] : uint4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const std::int64_t index = threadIdx.x + i * kThreads;
    if (index < vectors) destination[index] = held[i];
  }
}

__global__ void __launch_bounds__(kThreads, kCopyBlocks)
    CopyStates(LaunchShape shape, const StateCopyDescriptor* uploaded,
               const __grid_constant__ InlineStateCopies inline_copies, std::int64_t count) {
  const StateCopyDescriptor* copies = uploaded != nullptr ? uploaded : inline_copies.copies;
  const std::int64_t head_elements = static_cast<std::int64_t>(shape.key_dim) * shape.value_dim;
  const std::int64_t elements = shape.heads * head_elements;
  const std::int64_t first = blockIdx.x * kPartElements;
  const std::int64_t part = min(kPartElements, elements - first);
  for (std::int64_t number = blockIdx.y; number < count; number += gridDim.y) {
    const StateCopyDescriptor copy = copies[number];
    const StateReference& to = copy.destination;
    const StateReference& from = copy.source;
    const bool zero = from.data == nullptr;
    const bool raw = zero || to.dtype == from.dtype;
    const bool dense = to.head_stride == head_elements && (zero || from.head_stride == head_elements);
    const std::int64_t head = dense ? 0 : first / head_elements;
    const bool one_head = first + part <= (head + 1) * head_elements;

    if (raw && (dense || one_head)) {  // one contiguous run of bytes
      const int size = to.dtype == DataType::kFloat32 ? 4 : 2;
      const std::int64_t rest = first - head * head_elements;
      auto* destination = static_cast<std::byte*>(to.data) + (dense ? first : head * to.head_stride + rest) * size;
      const std::byte* source =
          zero ? nullptr
               : static_cast<const std::byte*>(from.data) + (dense ? first : head * from.head_stride + rest) * size;
      if (destination == source) continue;
      if (Aligned16(destination) && Aligned16(source) && part * size % 16 == 0) {
        CopyVectors(reinterpret_cast<uint4*>(destination), reinterpret_cast<const uint4*>(source), part * size / 16);
        continue;
      }
    }
    for (std::int64_t i = first + threadIdx.x; i < first + part; i += kThreads) {
      const std::int64_t h = i / head_elements;
      const std::int64_t rest = i - h * head_elements;
      const std::int64_t target = h * to.head_stride + rest;
      const std::int64_t origin = h * from.head_stride + rest;
      if (zero) {
        StoreElement(to.data, target, to.dtype, 0.0F);
      } else if (!raw) {
        StoreElement(to.data, target, to.dtype, LoadElement(from.data, origin, from.dtype));
      } else if (to.dtype == DataType::kFloat32) {  // bit for bit, NaN payloads too
        static_cast<std::uint32_t*>(to.data)[target] = static_cast<const std::uint32_t*>(from.data)[origin];
      } else {
        static_cast<std::uint16_t*>(to.data)[target] = static_cast<const std::uint16_t*>(from.data)[origin];
      }
    }
  }
}

/// Whether any of `count` elements is a NaN or an infinity: all exponent bits set.
template <typename Bits>
__device__ bool AnyNonFinite(const Bits* data, std::int64_t count, Bits exponent) {
  bool found = false;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) found |= (data[i] & exponent) == exponent;
  return found;
}

__global__ void __launch_bounds__(kThreads)
    FindNonFinite(const FiniteCheckDescriptor* ranges, std::int64_t count, unsigned long long* first) {
  for (std::int64_t n = 0; n < count; ++n) {
    const FiniteCheckDescriptor range = ranges[n];
    bool found = false;
    for (std::int64_t start = blockIdx.x * kPartElements; start < range.elements; start += gridDim.x * kPartElements) {
      const std::int64_t part = min(kPartElements, range.elements - start);
      if (range.dtype == DataType::kFloat32) {
        found |= AnyNonFinite(static_cast<const std::uint32_t*>(range.data) + start, part, std::uint32_t{0x7f800000});
      } else {
        const auto exponent = static_cast<std::uint16_t>(range.dtype == DataType::kBFloat16 ? 0x7f80 : 0x7c00);
        found |= AnyNonFinite(static_cast<const std::uint16_t*>(range.data) + start, part, exponent);
      }
    }
    if (found) atomicMin(first, static_cast<unsigned long long>(n));
  }
}

}  // namespace

cudaError_t LaunchCopyStates(const LaunchShape& shape, const StateCopyDescriptor* uploaded,
                             const InlineStateCopies& inline_copies, std::int64_t count, cudaStream_t stream) {
  const std::int64_t elements = shape.heads * shape.key_dim * shape.value_dim;
  const dim3 blocks(static_cast<unsigned>((elements + kPartElements - 1) / kPartElements),
                    static_cast<unsigned>(std::min(count, kMaxCopies)));
  CopyStates<<<blocks, kThreads, 0, stream>>>(shape, uploaded, inline_copies, count);
  return cudaGetLastError();
}

cudaError_t LaunchFindNonFinite(const FiniteCheckDescriptor* ranges, std::int64_t count, unsigned long long* first,
                                int multiprocessors, cudaStream_t stream) {
  FindNonFinite<<<kBlocksPerMultiprocessor * multiprocessors, kThreads, 0, stream>>>(ranges, count, first);
  return cudaGetLastError();
}

}  // namespace gdpcache::kernels::cuda
