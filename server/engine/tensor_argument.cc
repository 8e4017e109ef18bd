#include "server/engine/tensor_argument.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cache/errors.h"

namespace gdpcache::engine {

using cache::InvalidField;

absl::string_view Name(ElementType type) {
  switch (type) {
    case ElementType::kUnspecified:
      return "unspecified";
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kBFloat16:
      return "bfloat16";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kUint8:
      return "uint8";
  }
  return "unknown";
}

ElementType ElementTypeOf(kernels::DataType type) {
  switch (type) {
    case kernels::DataType::kFloat32:
      return ElementType::kFloat32;
    case kernels::DataType::kBFloat16:
      return ElementType::kBFloat16;
    case kernels::DataType::kFloat16:
      return ElementType::kFloat16;
  }
  return ElementType::kUnspecified;
}

std::optional<kernels::DataType> FloatType(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return kernels::DataType::kFloat32;
    case ElementType::kBFloat16:
      return kernels::DataType::kBFloat16;
    case ElementType::kFloat16:
      return kernels::DataType::kFloat16;
    case ElementType::kUnspecified:
    case ElementType::kUint8:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string ShapeName(absl::Span<const std::int64_t> shape) {
  constexpr std::size_t kShown = 8;
  return absl::StrCat("[", absl::StrJoin(shape.first(std::min(shape.size(), kShown)), ", "),
                      shape.size() > kShown ? absl::StrCat(", ... ", shape.size(), " dimensions") : "", "]");
}

std::optional<std::int64_t> BoundedProduct(absl::Span<const std::int64_t> factors) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  std::int64_t product = 1;
  if (std::find(factors.begin(), factors.end(), 0) != factors.end()) return 0;
  for (const std::int64_t factor : factors) {
    if (product > kMost / factor) return std::nullopt;
    product *= factor;
  }
  return product;
}

absl::Status CheckPlace(absl::string_view field, const RegionPlace& place, std::int64_t bytes, std::int64_t alignment) {
  if (place.region->kind() == cache::RegionKind::kCudaEvent) {
    return InvalidField(absl::StrCat(field, ".region"), "is an event; it must be memory");
  }
  if (place.offset % static_cast<std::uint64_t>(alignment) != 0) {
    return InvalidField(absl::StrCat(field, ".offset"),
                        absl::StrCat("is ", place.offset, "; it must be a multiple of the element size ", alignment));
  }
  if (!place.region->Contains(place.offset, static_cast<std::uint64_t>(bytes))) {
    return InvalidField(absl::StrCat(field, ".offset"), absl::StrCat("is ", place.offset, " and the tensor has ", bytes,
                                                                     " bytes; the region has ", place.region->size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> CheckTensor(absl::string_view name, const TensorArgument& tensor, ElementType dtype,
                                         absl::Span<const std::int64_t> shape,
                                         absl::Span<const std::int64_t> alternative, TensorTransport transport) {
  if (tensor.dtype != dtype) {
    return InvalidField(absl::StrCat(name, ".dtype"),
                        absl::StrCat("is ", Name(tensor.dtype), "; it must be ", Name(dtype)));
  }
  if (tensor.shape != shape && (alternative.empty() || tensor.shape != alternative)) {
    return InvalidField(absl::StrCat(name, ".shape"),
                        absl::StrCat("is ", ShapeName(tensor.shape), "; it must be ", ShapeName(shape),
                                     alternative.empty() ? "" : absl::StrCat(" or ", ShapeName(alternative))));
  }
  std::vector<std::int64_t> factors(shape.begin(), shape.end());
  const std::int64_t element = FloatType(dtype).has_value() ? kernels::ByteSize(*FloatType(dtype)) : 1;
  factors.push_back(element);
  const std::optional<std::int64_t> bytes = BoundedProduct(factors);
  if (!bytes.has_value()) {
    return InvalidField(absl::StrCat(name, ".shape"),
                        absl::StrCat("is ", ShapeName(tensor.shape), "; its size must not exceed 2^62 bytes"));
  }
  if (transport == TensorTransport::kStream) {
    if (tensor.place.region != nullptr) {
      return InvalidField(absl::StrCat(name, ".shared_memory"), "is given; in a stream the bytes follow in frames");
    }
    if (tensor.data != nullptr) {
      return InvalidField(absl::StrCat(name, ".inline"),
                          absl::StrCat("holds ", tensor.data_bytes, " bytes; in a stream they follow in frames"));
    }
  } else if (tensor.place.region != nullptr) {
    if (absl::Status status = CheckPlace(absl::StrCat(name, ".shared_memory"), tensor.place, *bytes, element);
        !status.ok()) {
      return status;
    }
  } else if (tensor.data_bytes != *bytes) {
    return InvalidField(absl::StrCat(name, ".inline"), absl::StrCat("holds ", tensor.data_bytes, " bytes; the shape ",
                                                                    ShapeName(tensor.shape), " needs ", *bytes));
  }
  return *bytes;
}

}  // namespace gdpcache::engine
