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

  /// Boxes of 64 rows of one head by `box_columns` of a dense [length, heads, width] tensor of 16-bit elements. A box's
  /// row, here and below, has 32, 64 or 128 bytes and is swizzled over them.
  absl::Status EncodeRows(CUtensorMap* map, const void* data, DataType dtype, std::int64_t length, std::int64_t heads,
                          std::int64_t width, int box_columns) const;

  /// States [count, heads, key_dim, value_dim], dense within a head.
  struct States {
    void* data = nullptr;
    DataType dtype = DataType::kFloat32;
    std::int64_t count = 0;
    std::int64_t heads = 0;
    std::int64_t key_dim = 0;
    std::int64_t value_dim = 0;
    std::int64_t head_bytes = 0;   // from one head to the next
    std::int64_t state_bytes = 0;  // from one state to the next
  };

  /// Boxes of `box_keys` keys of one head by `box_columns`.
  absl::Status EncodeStates(CUtensorMap* map, const States& states, int box_columns, int box_keys) const;

 private:
  using EncodeFunction = decltype(&cuTensorMapEncodeTiled);
  explicit TensorMapEncoder(EncodeFunction encode) : encode_(encode) {}

  /// A tensor of these sizes, innermost first; `distances` in bytes from one index of each outer dimension to the next.
  template <std::size_t kRank>
  absl::Status Encode(CUtensorMap* map, const void* data, DataType dtype, const std::array<std::int64_t, kRank>& sizes,
                      const std::array<std::int64_t, kRank - 1>& distances,
                      const std::array<std::int64_t, kRank>& box) const;

  EncodeFunction encode_;
};

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_TENSOR_MAP_H_
