#include "gdpcache/tensor.h"

#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gdpcache {
namespace {

constexpr std::int64_t kMaxByteSize = std::int64_t{1} << 62;

}  // namespace

std::int64_t ElementSize(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return 4;
    case DataType::kBFloat16:
    case DataType::kFloat16:
      return 2;
    case DataType::kUInt8:
      return 1;
  }
  return 1;
}

absl::string_view DataTypeName(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kFloat16:
      return "float16";
    case DataType::kUInt8:
      return "uint8";
  }
  return "unknown";
}

absl::StatusOr<std::int64_t> ByteSize(DataType dtype, absl::Span<const std::int64_t> shape) {
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the shape [", absl::StrJoin(shape, ", "), "] is negative"));
    }
    empty = empty || dimension == 0;
  }
  if (empty) return 0;
  std::int64_t size = ElementSize(dtype);
  for (const std::int64_t dimension : shape) {
    if (size > kMaxByteSize / dimension) {
      return absl::InvalidArgumentError(
          absl::StrCat("a tensor of shape [", absl::StrJoin(shape, ", "), "] is larger than 2^62 bytes"));
    }
    size *= dimension;
  }
  return size;
}

absl::StatusOr<OwnedTensor> OwnedTensor::Allocate(DataType dtype, std::vector<std::int64_t> shape) {
  absl::StatusOr<std::int64_t> size = ByteSize(dtype, shape);
  if (!size.ok()) return size.status();
  OwnedTensor tensor;
  // One byte at least, so that an empty tensor that exists differs from no tensor.
  tensor.data_.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(*size > 0 ? *size : 1)]);
  if (tensor.data_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a result of ", *size, " bytes"));
  }
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.byte_size_ = *size;
  return tensor;
}

}  // namespace gdpcache
