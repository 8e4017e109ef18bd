#ifndef GDPCACHE_KERNELS_CUDA_TENSOR_MAP_H_
#define GDPCACHE_KERNELS_CUDA_TENSOR_MAP_H_

#include <cuda.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/data_type.h"

namespace gdpcache::kernels::cuda {

/// Writes tensor maps through the driver, which is looked up at run time so that programs start without one.
class TensorMapEncoder {
 public:
  /// UNAVAILABLE when the driver does not know tensor maps.
  static absl::StatusOr<TensorMapEncoder> Create();

  /// Whether a [length, heads, width] tensor at `data` can have a map.
  static bool CanEncode(const void* data, std::int64_t length, std::int64_t width);

  /// Boxes of 64 rows of one head by `box_columns` (32 or 64) of a dense [length, heads, width] tensor of 16-bit
  /// elements, swizzled over the bytes of a box's row.
  absl::Status Encode(CUtensorMap* map, const void* data, DataType dtype, std::int64_t length, std::int64_t heads,
                      std::int64_t width, int box_columns) const;

 private:
  using EncodeFunction = decltype(&cuTensorMapEncodeTiled);
  explicit TensorMapEncoder(EncodeFunction encode) : encode_(encode) {}

  EncodeFunction encode_;
};

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_TENSOR_MAP_H_
