#include "tests/support/heap_backend.h"

#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gdpcache::test {
namespace {

constexpr std::align_val_t kAlignment{64};

class HeapStream final : public kernels::Stream {};

}  // namespace

HeapBackend::~HeapBackend() { EXPECT_EQ(allocated_bytes_, 0) << "a buffer outlives its backend"; }

kernels::DeviceInfo HeapBackend::device_info() const { return {"cpu", "test heap", std::int64_t{1} << 30}; }

absl::StatusOr<kernels::Buffer> HeapBackend::Allocate(std::size_t size, kernels::MemoryKind kind) {
  void* data = ::operator new(size, kAlignment, std::nothrow);
  if (data == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size, " bytes"));
  std::memset(data, 0xA5, size);  // whoever reads it before writing it shows
  allocated_bytes_ += static_cast<std::int64_t>(size);
  return kernels::Buffer(this, data, size, kind);
}

void HeapBackend::Free(void* data, std::size_t size, kernels::MemoryKind /*kind*/) noexcept {
  allocated_bytes_ -= static_cast<std::int64_t>(size);
  ::operator delete(data, kAlignment);
}

absl::StatusOr<std::unique_ptr<kernels::Stream>> HeapBackend::CreateStream() { return std::make_unique<HeapStream>(); }

absl::Status HeapBackend::RunRecurrence(const kernels::RecurrenceShape& /*shape*/,
                                        absl::Span<const kernels::Sequence> /*sequences*/,
                                        kernels::Stream& /*stream*/) {
  return absl::UnimplementedError("the test heap computes nothing");
}

absl::Status HeapBackend::CopyStates(const kernels::RecurrenceShape& shape, absl::Span<const kernels::StateCopy> copies,
                                     kernels::Stream& /*stream*/) {
  const std::int64_t head_elements = shape.key_dim * shape.value_dim;
  for (const kernels::StateCopy& copy : copies) {
    if (copy.source.data != nullptr && copy.source.dtype != copy.destination.dtype) {
      return absl::UnimplementedError("the test heap converts nothing");
    }
    const std::int64_t element = kernels::ByteSize(copy.destination.dtype);
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      auto* destination =
          static_cast<std::byte*>(copy.destination.data) + head * copy.destination.head_stride * element;
      if (copy.source.data == nullptr) {
        std::memset(destination, 0, head_elements * element);
      } else {
        std::memcpy(destination,
                    static_cast<const std::byte*>(copy.source.data) + head * copy.source.head_stride * element,
                    head_elements * element);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status HeapBackend::CopyBytes(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& /*stream*/) {
  for (const kernels::ByteCopy& copy : copies) std::memcpy(copy.destination, copy.source, copy.size);
  return absl::OkStatus();
}

absl::Status HeapBackend::ZeroBytes(absl::Span<const kernels::ByteRange> ranges, kernels::Stream& /*stream*/) {
  for (const kernels::ByteRange& range : ranges) std::memset(range.data, 0, range.size);
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> HeapBackend::FindNonFinite(absl::Span<const kernels::FiniteCheck> /*ranges*/,
                                                        kernels::Stream& /*stream*/) {
  return absl::UnimplementedError("the test heap computes nothing");
}

absl::Status HeapBackend::Synchronize(kernels::Stream& /*stream*/) { return absl::OkStatus(); }

}  // namespace gdpcache::test
