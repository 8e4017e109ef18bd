#include <algorithm>
#include <atomic>
#include <cstddef>

#include "kernels/cuda/recurrence_hopper.cuh"
#include "kernels/cuda/recurrence_hopper.h"

namespace gdpcache::kernels::cuda {
namespace {

/// The kernel for one division of the work, for both input dtypes.
struct Variant {
  int keys;  // that heads are padded to
  int tile;
  int cluster;
  HopperBuffers buffers;
  bool high_precision;
  const void* kernels[2];  // bfloat16, float16
  int shared_bytes;
  std::atomic<int> clusters{0};  // that the device runs at a time
};

template <int Keys, int Tile, int Cluster = 1, HopperBuffers Buffers = HopperBuffers::kUsual, bool High = false>
Variant VariantOf() {
  using P = hopper::Plan<Keys, Tile, Cluster, Buffers, High>;
  static_assert(P::kBytes <= 227 * 1024);
  return {Keys,
          Tile,
          Cluster,
          Buffers,
          High,
          {reinterpret_cast<const void*>(hopper::Recurrence<__nv_bfloat16, P>),
           reinterpret_cast<const void*>(hopper::Recurrence<__half, P>)},
          P::kBytes};
}

constexpr int kWide = 64;  // value columns of a tile
constexpr int kNarrow = 32;
constexpr int kNarrowest = 16;
constexpr std::int64_t kFewStaged = 8 * 1024;  // bytes of boundaries a chunk that one buffer is enough for

constexpr HopperBuffers kUsual = HopperBuffers::kUsual;
constexpr HopperBuffers kShort = HopperBuffers::kShort;
constexpr HopperBuffers kDeep = HopperBuffers::kDeep;

/// Of one number of keys and one tile, the variants to prefer come first.
Variant variants[] = {
    VariantOf<64, kWide>(),
    VariantOf<64, kNarrow>(),
    VariantOf<64, kNarrow, 2>(),
    VariantOf<64, kNarrowest>(),
    VariantOf<128, kWide, 1, kShort>(),
    VariantOf<128, kWide, 2, kDeep>(),
    VariantOf<128, kWide, 2>(),
    VariantOf<128, kWide>(),
    VariantOf<128, kNarrow, 1, kDeep>(),
    VariantOf<128, kNarrow>(),
    VariantOf<128, kNarrow, 2, kDeep>(),
    VariantOf<128, kNarrowest>(),
    VariantOf<192, kNarrow>(),
    VariantOf<256, kNarrowest>(),
    VariantOf<64, kNarrow, 1, kUsual, true>(),
    VariantOf<128, kNarrow, 1, kUsual, true>(),
    VariantOf<192, kNarrow, 1, kUsual, true>(),
    VariantOf<256, kNarrowest, 1, kUsual, true>(),
};

bool Fits(const Variant& variant, const LaunchShape& shape) {
  return variant.keys == (shape.key_dim + 63) / 64 * 64 && variant.high_precision == shape.high_precision;
}

int TilesOf(const Variant& variant, const LaunchShape& shape) {
  return (shape.value_dim + variant.tile - 1) / variant.tile;
}

/// A launch of `clusters` clusters. The attribute must live as long as the configuration.
cudaLaunchConfig_t Configure(const Variant& variant, std::int64_t clusters, cudaStream_t stream,
                             cudaLaunchAttribute& attribute) {
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(variant.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * variant.cluster));
  config.blockDim = dim3(hopper::kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(variant.shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = variant.cluster > 1 ? 1 : 0;
  return config;
}

cudaError_t Prepare(Variant& variant, int multiprocessors) {
  int clusters = multiprocessors;
  for (const void* kernel : variant.kernels) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, variant.shared_bytes);
    if (error != cudaSuccess) return error;
    if (variant.cluster == 1) continue;
    cudaLaunchAttribute attribute{};
    const cudaLaunchConfig_t config = Configure(variant, 1, nullptr, attribute);
    error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    if (error != cudaSuccess) return error;
  }
  variant.clusters = clusters;
  return cudaSuccess;
}

}  // namespace

bool HopperCovers(const LaunchShape& shape) {
  return shape.chunk_size == kHopperChunk && shape.input_dtype != DataType::kFloat32 && shape.key_dim % 8 == 0 &&
         shape.value_dim % 8 == 0;
}

cudaError_t PrepareHopperRecurrence(int multiprocessors) {
  for (Variant& variant : variants) {
    if (const cudaError_t error = Prepare(variant, multiprocessors); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

HopperTiling ChooseHopperTiling(const LaunchShape& shape, const HopperWork& work) {
  const std::int64_t pairs = work.sequences * shape.heads;
  const auto rounds = [pairs](std::int64_t per_pair, std::int64_t at_a_time) {
    return (pairs * per_pair + at_a_time - 1) / at_a_time;
  };
  // What a thread block stages of boundaries, bytes a chunk.
  const auto staged = [&](const Variant& variant) {
    return std::int64_t{variant.keys} * variant.tile * work.boundary_bytes / shape.num_householder;
  };
  const Variant* best = nullptr;
  for (const Variant& variant : variants) {
    if (!Fits(variant, shape) || (variant.buffers == kShort && work.longest > kHopperShort)) continue;
    if (variant.buffers == kDeep && staged(variant) > kFewStaged) continue;
    const int tiles = TilesOf(variant, shape);
    // Not all multiprocessors have neighbours enough.
    if (variant.cluster > 1 &&
        (tiles % variant.cluster != 0 || variant.clusters == 0 ||
         rounds(tiles / variant.cluster, variant.clusters) > rounds(tiles, work.multiprocessors))) {
      continue;
    }
    // Narrower tiles where they find idle multiprocessors; and in clusters, which read no more than wide ones, where
    // they take float32 boundaries in portions that one buffer is enough for. (16-bit rows would be half a cache line.)
    const bool finds_idle =
        best != nullptr && variant.tile < best->tile && pairs * TilesOf(*best, shape) <= work.multiprocessors / 2;
    const bool portions = best != nullptr && best->buffers != kShort && best->tile == kWide &&
                          variant.tile == kNarrow && variant.cluster > 1 && work.boundary_bytes == 4 &&
                          staged(*best) >= 2 * kFewStaged && staged(variant) <= kFewStaged;
    if (best == nullptr || finds_idle || portions) best = &variant;
  }
  return {best->tile, TilesOf(*best, shape), best->cluster, best->buffers};
}

cudaError_t LaunchHopperRecurrence(const HopperArguments& arguments, cudaStream_t stream) {
  const HopperTiling& tiling = arguments.tiling;
  for (const Variant& variant : variants) {
    if (!Fits(variant, arguments.shape) || variant.tile != tiling.value_tile || variant.cluster != tiling.cluster ||
        variant.buffers != tiling.buffers) {
      continue;
    }
    cudaLaunchAttribute attribute{};
    const cudaLaunchConfig_t config =
        Configure(variant, std::min<std::int64_t>(arguments.items, variant.clusters), stream, attribute);
    void* parameters[] = {const_cast<HopperArguments*>(&arguments)};
    return cudaLaunchKernelExC(&config, variant.kernels[arguments.shape.input_dtype == DataType::kBFloat16 ? 0 : 1],
                               parameters);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gdpcache::kernels::cuda
