#ifndef GDPCACHE_KERNELS_CUDA_TENSOR_MAP_H_
#define GDPCACHE_KERNELS_CUDA_TENSOR_MAP_H_

#include <cuda.h>

#include <array>
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

  /// Whether rows of `row_bytes` at `data` can have a map.
  static bool CanEncode(const void* data, std::int64_t row_bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
  }

  /// Boxes of 64 rows of one head by `box_columns` (32 or 64) of a dense [length, heads, width] tensor of 16-bit
  /// elements, swizzled over the bytes of a box's row.
  absl::Status EncodeRows(CUtensorMap* map, const void* data, DataType dtype, std::int64_t length, std::int64_t heads,
                          std::int64_t width, int box_columns) const;

  /// Boxes of all keys of one state by `box_columns` of dense [count, key_dim, value_dim] states, swizzled likewise.
  absl::Status EncodeStates(CUtensorMap* map, void* data, DataType dtype, std::int64_t count, std::int64_t key_dim,
                            std::int64_t value_dim, int box_columns, int box_keys) const;

 private:
  using EncodeFunction = decltype(&cuTensorMapEncodeTiled);
  using Sizes = std::array<std::int64_t, 3>;
  explicit TensorMapEncoder(EncodeFunction encode) : encode_(encode) {}

  /// A dense tensor of these sizes, innermost first; `distances` in bytes between its rows and planes.
  absl::Status Encode(CUtensorMap* map, const void* data, DataType dtype, const Sizes& sizes,
                      std::array<std::int64_t, 2> distances, const Sizes& box) const;

  EncodeFunction encode_;
};

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_TENSOR_MAP_H_
