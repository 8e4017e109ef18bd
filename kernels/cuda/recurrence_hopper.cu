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
  bool is_short;
  bool high_precision;
  const void* kernels[2];  // bfloat16, float16
  int shared_bytes;
  std::atomic<int> clusters{0};  // that the device runs at a time
};

template <int Keys, int Tile, int Cluster = 1, bool Short = false, bool High = false>
Variant VariantOf() {
  using P = hopper::Plan<Keys, Tile, Cluster, Short, High>;
  static_assert(P::kBytes <= 227 * 1024);
  return {Keys,
          Tile,
          Cluster,
          Short,
          High,
          {reinterpret_cast<const void*>(hopper::Recurrence<__nv_bfloat16, P>),
           reinterpret_cast<const void*>(hopper::Recurrence<__half, P>)},
          P::kBytes};
}

constexpr int kWide = 64;  // value columns of a tile
constexpr int kNarrow = 32;
constexpr int kNarrowest = 16;

/// For each number of keys the widest tiles first, and of each width the preferred cluster.
Variant variants[] = {
    VariantOf<64, kWide>(),
    VariantOf<64, kNarrow, 2>(),
    VariantOf<64, kNarrow>(),
    VariantOf<64, kNarrowest>(),
    VariantOf<128, kWide, 1, true>(),
    VariantOf<128, kWide, 2>(),
    VariantOf<128, kWide>(),
    VariantOf<128, kNarrow, 2>(),
    VariantOf<128, kNarrow>(),
    VariantOf<128, kNarrowest>(),
    VariantOf<192, kNarrow>(),
    VariantOf<256, kNarrowest>(),
    VariantOf<64, kNarrow, 1, false, true>(),
    VariantOf<128, kNarrow, 1, false, true>(),
    VariantOf<192, kNarrow, 1, false, true>(),
    VariantOf<256, kNarrowest, 1, false, true>(),
};

bool Fits(const Variant& variant, const LaunchShape& shape) {
  return variant.keys == (shape.key_dim + 63) / 64 * 64 && variant.high_precision == shape.high_precision;
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

HopperTiling ChooseHopperTiling(const LaunchShape& shape, std::int64_t sequences, std::int64_t longest,
                                int multiprocessors) {
  const std::int64_t pairs = sequences * shape.heads;
  const auto rounds = [pairs](std::int64_t per_pair, std::int64_t at_a_time) {
    return (pairs * per_pair + at_a_time - 1) / at_a_time;
  };
  HopperTiling best;
  for (const Variant& variant : variants) {
    const int tiles = (shape.value_dim + variant.tile - 1) / variant.tile;
    if (!Fits(variant, shape) || (variant.is_short && longest > kHopperShort)) continue;
    if (variant.cluster > 1) {
      // The blocks of a cluster wait for each other: narrow ones only where that spares all reads but one. And not all
      // multiprocessors have neighbours enough.
      const bool covers = variant.tile == kWide ? tiles % variant.cluster == 0 : tiles == variant.cluster;
      if (!covers || variant.clusters == 0 ||
          rounds(tiles / variant.cluster, variant.clusters) > rounds(tiles, multiprocessors))
        continue;
    }
    // Narrower tiles as long as they find idle multiprocessors; the narrowest use each other's reads least.
    const int share = variant.tile == kNarrowest ? 4 : 2;
    if (best.value_tile == 0 ||
        (variant.tile < best.value_tile && pairs * best.value_tiles <= multiprocessors / share)) {
      best = {variant.tile, tiles, variant.cluster, variant.is_short ? 1 : 0};
    }
  }
  return best;
}

cudaError_t LaunchHopperRecurrence(const HopperArguments& arguments, cudaStream_t stream) {
  const HopperTiling& tiling = arguments.tiling;
  for (const Variant& variant : variants) {
    if (!Fits(variant, arguments.shape) || variant.tile != tiling.value_tile || variant.cluster != tiling.cluster ||
        variant.is_short != (tiling.is_short != 0)) {
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
