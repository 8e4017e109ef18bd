#ifndef GDPCACHE_SERVER_ENGINE_TENSOR_ARGUMENT_H_
#define GDPCACHE_SERVER_ENGINE_TENSOR_ARGUMENT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/data_type.h"
#include "server/cache/memory/region.h"

namespace gdpcache::engine {

/// Element type as a caller declares it.
enum class ElementType : std::uint8_t { kUnspecified, kFloat32, kBFloat16, kFloat16, kUint8 };

absl::string_view Name(ElementType type);
ElementType ElementTypeOf(kernels::DataType type);
/// nullopt for what is no floating-point type.
std::optional<kernels::DataType> FloatType(ElementType type);

/// A place in shared memory as a caller declares it; not validated either. Whoever makes it keeps the region.
struct RegionPlace {
  const cache::Region* region = nullptr;  // nullptr: no such place
  std::uint64_t offset = 0;

  /// Only of a place that CheckPlace has found good.
  std::byte* data() const { return region->At(offset); }
  /// Whether it is in the device's memory.
  bool on_device() const { return region != nullptr && region->kind() == cache::RegionKind::kCuda; }
};

/// A tensor as a caller declares it; nothing of it is validated yet.
struct TensorArgument {
  bool present = false;
  ElementType dtype = ElementType::kUnspecified;
  absl::Span<const std::int64_t> shape = {};
  const void* data = nullptr;  // row-major; nullptr where the bytes follow in frames
  std::int64_t data_bytes = 0;
  RegionPlace place = {};  // where the bytes are instead
};

/// How the tensors' bytes reach the server.
enum class TensorTransport : std::uint8_t {
  kInline,  // TensorArgument::data
  kStream,  // in frames after the header; a tensor that carries bytes is refused
};

/// "[2, 3]"; the beginning of long ones.
std::string ShapeName(absl::Span<const std::int64_t> shape);

/// Product of non-negative factors; nullopt beyond 2^62.
std::optional<std::int64_t> BoundedProduct(absl::Span<const std::int64_t> factors);

/// Whether `bytes` bytes of elements of `alignment` bytes lie at `place`. INVALID_ARGUMENT names `field` and both
/// values.
absl::Status CheckPlace(absl::string_view field, const RegionPlace& place, std::int64_t bytes, std::int64_t alignment);

/// The bytes of `tensor`, which must be of type `dtype`, of shape `shape` (or `alternative`, if that is not empty), at
/// most 2^62 bytes large and carry its data as `transport` says. INVALID_ARGUMENT names the field (`name` and its part)
/// and both values.
absl::StatusOr<std::int64_t> CheckTensor(absl::string_view name, const TensorArgument& tensor, ElementType dtype,
                                         absl::Span<const std::int64_t> shape,
                                         absl::Span<const std::int64_t> alternative, TensorTransport transport);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_TENSOR_ARGUMENT_H_
