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

template <std::size_t kRank>
absl::Status TensorMapEncoder::Encode(CUtensorMap* map, const void* data, DataType dtype,
                                      const std::array<std::int64_t, kRank>& sizes,
                                      const std::array<std::int64_t, kRank - 1>& distances,
                                      const std::array<std::int64_t, kRank>& box) const {
  const auto type = dtype == DataType::kFloat32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                    : dtype == DataType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  std::array<cuuint64_t, kRank> map_sizes{};
  std::copy(sizes.begin(), sizes.end(), map_sizes.begin());
  std::array<cuuint64_t, kRank - 1> map_distances{};
  std::copy(distances.begin(), distances.end(), map_distances.begin());
  std::array<cuuint32_t, kRank> map_box{};
  std::transform(box.begin(), box.end(), map_box.begin(), [](std::int64_t n) { return static_cast<cuuint32_t>(n); });
  std::array<cuuint32_t, kRank> steps{};
  steps.fill(1);
  const std::int64_t row_bytes = box[0] * ByteSize(dtype);
  const auto swizzle = row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                       : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                         : CU_TENSOR_MAP_SWIZZLE_32B;
  const CUresult result = encode_(map, type, kRank, const_cast<void*>(data), map_sizes.data(), map_distances.data(),
                                  map_box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(absl::StrCat("CUDA: cuTensorMapEncodeTiled failed with ", static_cast<int>(result),
                                            " for a tensor of ", sizes.back(), " x ... x ", sizes.front()));
  }
  return absl::OkStatus();
}

absl::Status TensorMapEncoder::EncodeRows(CUtensorMap* map, const void* data, DataType dtype, std::int64_t length,
                                          std::int64_t heads, std::int64_t width, int box_columns) const {
  const std::int64_t row_bytes = width * ByteSize(dtype);
  return Encode<3>(map, data, dtype, {width, heads, length}, {row_bytes, heads * row_bytes}, {box_columns, 1, 64});
}

absl::Status TensorMapEncoder::EncodeStates(CUtensorMap* map, const States& states, int box_columns,
                                            int box_keys) const {
  return Encode<4>(map, states.data, states.dtype, {states.value_dim, states.key_dim, states.heads, states.count},
                   {states.value_dim * ByteSize(states.dtype), states.head_bytes, states.state_bytes},
                   {box_columns, box_keys, 1, 1});
}

}  // namespace gdpcache::kernels::cuda
