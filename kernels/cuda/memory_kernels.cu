#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/memory_kernels.h"

namespace gdpcache::kernels::cuda {
namespace {

static_assert(sizeof(InlineRuns) + 32 <= 4096 && kRunAlignment == sizeof(uint4));

constexpr int kThreads = 512;
constexpr int kBlocksPerMultiprocessor = 4;
constexpr std::int64_t kPartElements = 4096;  // that a thread block looks through or copies at a time
constexpr std::int64_t kMaxRows = 65535;      // of a grid

// Many short-lived thread blocks copy faster than few that loop, and two vectors a thread faster than one or four.
constexpr int kRunPieces = 2;
constexpr int kRunBlocks = 3;  // on a multiprocessor; one more would not leave enough registers
constexpr std::int64_t kRunVectors = std::int64_t{kThreads} * kRunPieces;

constexpr int kCopyThreads = 256;
constexpr int kQuads = 4;  // of elements, that a thread has in flight
static_assert(kPartElements == kCopyThreads * kQuads * 4);

__global__ void __launch_bounds__(kThreads, kRunBlocks)
    CopyRuns(const ByteRun* uploaded, const __grid_constant__ InlineRuns inline_runs, std::int64_t count,
             std::int64_t vectors) {
  const std::int64_t first = blockIdx.x * kRunVectors + threadIdx.x;
  for (std::int64_t number = blockIdx.y; number < count; number += gridDim.y) {
    auto* to = reinterpret_cast<uint4*>(inline_runs.destination);
    const auto* from = reinterpret_cast<const uint4*>(inline_runs.source);
    if (uploaded != nullptr) {
      to = static_cast<uint4*>(uploaded[number].destination);
      from = static_cast<const uint4*>(uploaded[number].source);
    } else {
      const std::uint32_t source = inline_runs.sources[number];
      to += inline_runs.destinations[number];
      from = source == InlineRuns::kNoSource ? nullptr : from + source;
    }
    uint4 held[kRunPieces] = {};
#pragma unroll
    for (int i = 0; i < kRunPieces; ++i) {
      if (from != nullptr && first + i * kThreads < vectors) held[i] = from[first + i * kThreads];
    }
#pragma unroll
    for (int i = 0; i < kRunPieces; ++i) {
      if (first + i * kThreads < vectors) to[first + i * kThreads] = held[i];
    }
  }
}

/// Four consecutive elements: float32 as they are, others in the low halves.
__device__ __forceinline__ uint4 LoadQuad(const void* data, std::int64_t index, DataType dtype) {
  if (dtype == DataType::kFloat32) return *reinterpret_cast<const uint4*>(static_cast<const float*>(data) + index);
  const uint2 packed = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(data) + index);
  return {packed.x & 0xffffU, packed.x >> 16, packed.y & 0xffffU, packed.y >> 16};
}

__device__ __forceinline__ void StoreQuad(void* data, std::int64_t index, DataType dtype, const uint4& bits) {
  if (dtype == DataType::kFloat32) {
    *reinterpret_cast<uint4*>(static_cast<float*>(data) + index) = bits;
  } else {
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(data) + index) = {bits.x | bits.y << 16,
                                                                            bits.z | bits.w << 16};
  }
}

__device__ __forceinline__ std::uint32_t LoadBits(const void* data, std::int64_t index, DataType dtype) {
  return dtype == DataType::kFloat32 ? static_cast<const std::uint32_t*>(data)[index]
                                     : static_cast<const std::uint16_t*>(data)[index];
}

__device__ __forceinline__ void StoreBits(void* data, std::int64_t index, DataType dtype, std::uint32_t bits) {
  if (dtype == DataType::kFloat32) {
    static_cast<std::uint32_t*>(data)[index] = bits;
  } else {
    static_cast<std::uint16_t*>(data)[index] = static_cast<std::uint16_t>(bits);
  }
}

/// Equal dtypes keep every bit, NaN payloads too.
__device__ __forceinline__ std::uint32_t ConvertBits(std::uint32_t bits, DataType from, DataType to) {
  return from == to ? bits : BitsOf(ValueOf(bits, from), to);
}

/// Whether quads of consecutive elements lie in one head and at addresses that allow one access.
__device__ __forceinline__ bool HasQuads(const StateReference& state) {
  const int size = state.dtype == DataType::kFloat32 ? 16 : 8;
  return reinterpret_cast<std::uintptr_t>(state.data) % size == 0 && state.head_stride % 4 == 0;
}

__global__ void __launch_bounds__(kCopyThreads)
    CopyStates(LaunchShape shape, const StateCopyDescriptor* copies, std::int64_t count) {
  const std::uint32_t head_elements = shape.key_dim * shape.value_dim;
  const std::int64_t elements = shape.heads * head_elements;
  const std::int64_t first = blockIdx.x * kPartElements;
  const auto part = static_cast<std::uint32_t>(min(kPartElements, elements - first));
  const std::int64_t first_head = first / head_elements;
  const auto first_rest = static_cast<std::uint32_t>(first - first_head * head_elements);
  // Where element `index` of the part lies in a state with that distance between heads.
  const auto place = [&](std::uint32_t index, std::int64_t head_stride) {
    const std::uint32_t heads = (first_rest + index) / head_elements;
    return (first_head + heads) * head_stride + (first_rest + index - heads * head_elements);
  };
  for (std::int64_t number = blockIdx.y; number < count; number += gridDim.y) {
    const StateReference to = copies[number].destination;
    const StateReference from = copies[number].source;
    const DataType source_dtype = from.data == nullptr ? to.dtype : from.dtype;
    if (head_elements % 4 == 0 && HasQuads(to) && HasQuads(from)) {
      uint4 held[kQuads] = {};
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const std::uint32_t index = (threadIdx.x + i * kCopyThreads) * 4;
        if (from.data != nullptr && index < part) {
          held[i] = LoadQuad(from.data, place(index, from.head_stride), source_dtype);
        }
      }
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const std::uint32_t index = (threadIdx.x + i * kCopyThreads) * 4;
        if (index >= part) break;
        StoreQuad(to.data, place(index, to.head_stride), to.dtype,
                  {ConvertBits(held[i].x, source_dtype, to.dtype), ConvertBits(held[i].y, source_dtype, to.dtype),
                   ConvertBits(held[i].z, source_dtype, to.dtype), ConvertBits(held[i].w, source_dtype, to.dtype)});
      }
      continue;
    }
    for (std::uint32_t i = threadIdx.x; i < part; i += kCopyThreads) {
      const std::uint32_t bits =
          from.data == nullptr ? 0 : LoadBits(from.data, place(i, from.head_stride), source_dtype);
      StoreBits(to.data, place(i, to.head_stride), to.dtype, ConvertBits(bits, source_dtype, to.dtype));
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

cudaError_t LaunchCopyRuns(const ByteRun* uploaded, const InlineRuns& inline_runs, std::int64_t count,
                           std::int64_t bytes, cudaStream_t stream) {
  const std::int64_t vectors = bytes / kRunAlignment;
  const dim3 blocks(static_cast<unsigned>((vectors + kRunVectors - 1) / kRunVectors),
                    static_cast<unsigned>(std::min(count, kMaxRows)));
  CopyRuns<<<blocks, kThreads, 0, stream>>>(uploaded, inline_runs, count, vectors);
  return cudaGetLastError();
}

cudaError_t LaunchCopyStates(const LaunchShape& shape, const StateCopyDescriptor* copies, std::int64_t count,
                             cudaStream_t stream) {
  const std::int64_t elements = shape.heads * shape.key_dim * shape.value_dim;
  const dim3 blocks(static_cast<unsigned>((elements + kPartElements - 1) / kPartElements),
                    static_cast<unsigned>(std::min(count, kMaxRows)));
  CopyStates<<<blocks, kCopyThreads, 0, stream>>>(shape, copies, count);
  return cudaGetLastError();
}

cudaError_t LaunchFindNonFinite(const FiniteCheckDescriptor* ranges, std::int64_t count, unsigned long long* first,
                                int multiprocessors, cudaStream_t stream) {
  FindNonFinite<<<kBlocksPerMultiprocessor * multiprocessors, kThreads, 0, stream>>>(ranges, count, first);
  return cudaGetLastError();
}

}  // namespace gdpcache::kernels::cuda
