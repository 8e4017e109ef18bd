#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <array>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_check.h"

namespace gdpcache::kernels::cuda {
namespace {

constexpr std::int64_t kElementBytes = 2;
constexpr cuuint32_t kBoxRows = 64;

}  // namespace

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

bool TensorMapEncoder::CanEncode(const void* data, std::int64_t length, std::int64_t width) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && width * kElementBytes % 16 == 0 &&
         length <= std::numeric_limits<std::int32_t>::max() - static_cast<std::int64_t>(kBoxRows);
}

absl::Status TensorMapEncoder::Encode(CUtensorMap* map, const void* data, DataType dtype, std::int64_t length,
                                      std::int64_t heads, std::int64_t width, int box_columns) const {
  const auto type = dtype == DataType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const std::array<cuuint64_t, 3> sizes = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(heads),
                                           static_cast<cuuint64_t>(length)};
  const std::array<cuuint64_t, 2> strides = {static_cast<cuuint64_t>(width * kElementBytes),
                                             static_cast<cuuint64_t>(heads * width * kElementBytes)};
  const std::array<cuuint32_t, 3> box = {static_cast<cuuint32_t>(box_columns), 1, kBoxRows};
  const std::array<cuuint32_t, 3> steps = {1, 1, 1};
  const auto swizzle = box_columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  const CUresult result = encode_(map, type, 3, const_cast<void*>(data), sizes.data(), strides.data(), box.data(),
                                  steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(absl::StrCat("CUDA: cuTensorMapEncodeTiled failed with ", static_cast<int>(result),
                                            " for a [", length, ", ", heads, ", ", width, "] tensor"));
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::kernels::cuda
