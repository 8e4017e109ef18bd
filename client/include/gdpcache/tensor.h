#ifndef GDPCACHE_TENSOR_H_
#define GDPCACHE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

/// Typed views of dense row-major arrays in host memory, little-endian and without padding.
namespace gdpcache {

/// Element types.
enum class DataType {
  kFloat32,
  kBFloat16,
  kFloat16,
  kUInt8,  // auxiliary bytes only
};

/// Bytes of one element.
std::int64_t ElementSize(DataType dtype);

/// "float32", "bfloat16", "float16" or "uint8".
absl::string_view DataTypeName(DataType dtype);

/// Bytes of an array. INVALID_ARGUMENT for a negative dimension and for sizes beyond 2^62.
absl::StatusOr<std::int64_t> ByteSize(DataType dtype, absl::Span<const std::int64_t> shape);

/// Input in memory of the caller, who keeps it unchanged until the call that uses it has returned. No alignment needed.
struct ConstTensor {
  DataType dtype = DataType::kFloat32;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

/// Output in memory of the caller. Its contents are unspecified when the call that writes it fails.
struct Tensor {
  DataType dtype = DataType::kFloat32;
  std::vector<std::int64_t> shape;
  void* data = nullptr;
};

/// Output in memory allocated by the library. Move-only.
class OwnedTensor {
 public:
  /// No tensor: an empty shape and no data.
  OwnedTensor() = default;

  /// Memory that is not initialised. RESOURCE_EXHAUSTED when there is not enough.
  static absl::StatusOr<OwnedTensor> Allocate(DataType dtype, std::vector<std::int64_t> shape);

  DataType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t byte_size() const { return byte_size_; }
  const std::byte* data() const { return data_.get(); }
  std::byte* data() { return data_.get(); }

  /// The elements as T, whose size must be that of dtype(): float for kFloat32, a 16-bit type for the half types.
  template <typename T>
  absl::Span<const T> As() const {
    return {reinterpret_cast<const T*>(data_.get()), static_cast<std::size_t>(byte_size_) / sizeof(T)};
  }

  ConstTensor view() const { return {dtype_, shape_, data_.get()}; }

 private:
  DataType dtype_ = DataType::kFloat32;
  std::vector<std::int64_t> shape_;
  std::int64_t byte_size_ = 0;
  std::unique_ptr<std::byte[]> data_;
};

/// A read-only list of integers that the caller keeps as 32-bit or as 64-bit values.
class IndexSpan {
 public:
  IndexSpan() = default;
  IndexSpan(absl::Span<const std::int32_t> values)  // NOLINT(google-explicit-constructor)
      : narrow_(values.data()), size_(values.size()) {}
  IndexSpan(absl::Span<const std::int64_t> values)  // NOLINT(google-explicit-constructor)
      : wide_(values.data()), size_(values.size()) {}
  IndexSpan(const std::vector<std::int32_t>& values)  // NOLINT(google-explicit-constructor)
      : IndexSpan(absl::Span<const std::int32_t>(values)) {}
  IndexSpan(const std::vector<std::int64_t>& values)  // NOLINT(google-explicit-constructor)
      : IndexSpan(absl::Span<const std::int64_t>(values)) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t operator[](std::size_t i) const { return wide_ != nullptr ? wide_[i] : narrow_[i]; }

 private:
  const std::int32_t* narrow_ = nullptr;
  const std::int64_t* wide_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace gdpcache

#endif  // GDPCACHE_TENSOR_H_
