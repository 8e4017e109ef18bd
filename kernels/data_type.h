#ifndef GDPCACHE_KERNELS_DATA_TYPE_H_
#define GDPCACHE_KERNELS_DATA_TYPE_H_

#include <cstdint>
#include <string_view>

namespace gdpcache::kernels {

/// Element type of an operand or of a stored state.
enum class DataType : std::uint8_t { kFloat32, kBFloat16, kFloat16 };

/// Bytes of one element.
constexpr std::int64_t ByteSize(DataType dtype) { return dtype == DataType::kFloat32 ? 4 : 2; }

/// The name used in messages and files: "float32", "bfloat16" or "float16".
constexpr std::string_view Name(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kFloat16:
      return "float16";
  }
  return "unknown";
}

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_DATA_TYPE_H_
