#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_check.h"

namespace gdpcache::kernels::cuda {
absl::StatusOr<TensorMapEncoder> TensorMapEncoder::Create() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  GDPCACHE_RETURN_IF_CUDA_ERROR(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::UnavailableError("CUDA: the driver has no cuTensorMapEncodeTiled; it is too old for this device");
  }
  return TensorMapEncoder(reinterpret_cast<EncodeFunction>(function));
}

absl::Status TensorMapEncoder::Encode(CUtensorMap* map, const void* data, DataType dtype, const Sizes& sizes,
                                      std::array<std::int64_t, 2> distances, const Sizes& box) const {
  const auto type = dtype == DataType::kFloat32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                    : dtype == DataType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  std::array<cuuint64_t, 3> map_sizes{};
  std::copy(sizes.begin(), sizes.end(), map_sizes.begin());
  std::array<cuuint64_t, 2> map_distances{};
  std::copy(distances.begin(), distances.end(), map_distances.begin());
  std::array<cuuint32_t, 3> map_box{};
  std::transform(box.begin(), box.end(), map_box.begin(), [](std::int64_t n) { return static_cast<cuuint32_t>(n); });
  const std::array<cuuint32_t, 3> steps = {1, 1, 1};
  const auto swizzle = box[0] * ByteSize(dtype) == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  const CUresult result = encode_(map, type, 3, const_cast<void*>(data), map_sizes.data(), map_distances.data(),
                                  map_box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(absl::StrCat("CUDA: cuTensorMapEncodeTiled failed with ", static_cast<int>(result),
                                            " for a [", sizes[2], ", ", sizes[1], ", ", sizes[0], "] tensor"));
  }
  return absl::OkStatus();
}

absl::Status TensorMapEncoder::EncodeRows(CUtensorMap* map, const void* data, DataType dtype, std::int64_t length,
                                          std::int64_t heads, std::int64_t width, int box_columns) const {
  const std::int64_t row_bytes = width * ByteSize(dtype);
  return Encode(map, data, dtype, {width, heads, length}, {row_bytes, heads * row_bytes}, {box_columns, 1, 64});
}

absl::Status TensorMapEncoder::EncodeStates(CUtensorMap* map, void* data, DataType dtype, std::int64_t count,
                                            std::int64_t key_dim, std::int64_t value_dim, int box_columns,
                                            int box_keys) const {
  const std::int64_t row_bytes = value_dim * ByteSize(dtype);
  return Encode(map, data, dtype, {value_dim, key_dim, count}, {row_bytes, key_dim * row_bytes},
                {box_columns, box_keys, 1});
}

}  // namespace gdpcache::kernels::cuda
