#include "tests/support/separate_memory_backend.h"

#include <utility>
#include <vector>

namespace gdpcache::test {
namespace {

constexpr std::uintptr_t kDeviceBit = std::uintptr_t{1} << 62;  // no address of a process has it

bool IsDevice(const void* address) { return (reinterpret_cast<std::uintptr_t>(address) & kDeviceBit) != 0; }

void* DeviceAddress(void* address) {
  return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): the point of this address
      reinterpret_cast<std::uintptr_t>(address) | kDeviceBit);
}

/// Translates addresses for the real backend, and remembers whether one was not the device's.
class Translator {
 public:
  template <typename T>
  T* operator()(T* address) {
    if (address == nullptr) return nullptr;
    all_device_ = all_device_ && IsDevice(address);
    return static_cast<T*>(SeparateMemoryBackend::HostAddress(address));
  }
  kernels::StateView operator()(kernels::StateView view) {
    view.data = (*this)(view.data);
    return view;
  }
  kernels::ConstStateView operator()(kernels::ConstStateView view) {
    view.data = (*this)(view.data);
    return view;
  }
  absl::Status Check() const {
    return all_device_ ? absl::OkStatus() : absl::InternalError("the arithmetic was given host memory");
  }

 private:
  bool all_device_ = true;
};

}  // namespace

void* SeparateMemoryBackend::HostAddress(const void* address) {
  return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
      reinterpret_cast<std::uintptr_t>(address) & ~kDeviceBit);
}

kernels::DeviceInfo SeparateMemoryBackend::device_info() const {
  kernels::DeviceInfo info = real_.device_info();
  info.unified_memory = false;
  return info;
}

absl::StatusOr<kernels::Buffer> SeparateMemoryBackend::Allocate(std::size_t size, kernels::MemoryKind kind) {
  absl::StatusOr<kernels::Buffer> buffer = real_.Allocate(size, kind);
  if (!buffer.ok() || kind == kernels::MemoryKind::kHost || buffer->data() == nullptr) return buffer;
  void* const address = DeviceAddress(buffer->data());
  const std::lock_guard lock(mutex_);
  device_.emplace(address, *std::move(buffer));
  return kernels::Buffer(this, address, size, kind);
}

void SeparateMemoryBackend::Free(void* data, std::size_t /*size*/, kernels::MemoryKind /*kind*/) noexcept {
  const std::lock_guard lock(mutex_);
  device_.erase(data);
}

absl::StatusOr<std::unique_ptr<kernels::Stream>> SeparateMemoryBackend::CreateStream() { return real_.CreateStream(); }

absl::Status SeparateMemoryBackend::RunRecurrence(const kernels::RecurrenceShape& shape,
                                                  absl::Span<const kernels::Sequence> sequences,
                                                  kernels::Stream& stream) {
  Translator translate;
  std::vector<kernels::Sequence> translated(sequences.begin(), sequences.end());
  std::vector<std::vector<kernels::BoundaryStore>> boundaries;
  boundaries.reserve(translated.size());
  for (kernels::Sequence& sequence : translated) {
    sequence.k = translate(sequence.k);
    sequence.w = translate(sequence.w);
    sequence.u = translate(sequence.u);
    sequence.g = translate(sequence.g);
    sequence.v_new = translate(sequence.v_new);
    sequence.initial_state = translate(sequence.initial_state);
    sequence.slot = translate(sequence.slot);
    sequence.final_state = translate(sequence.final_state);
    sequence.all_boundaries = translate(sequence.all_boundaries);
    boundaries.emplace_back(sequence.boundaries.begin(), sequence.boundaries.end());
    for (kernels::BoundaryStore& store : boundaries.back()) store.destination = translate(store.destination);
    sequence.boundaries = boundaries.back();
  }
  if (absl::Status status = translate.Check(); !status.ok()) return status;
  return real_.RunRecurrence(shape, translated, stream);
}

absl::Status SeparateMemoryBackend::CopyStates(const kernels::RecurrenceShape& shape,
                                               absl::Span<const kernels::StateCopy> copies, kernels::Stream& stream) {
  Translator translate;
  std::vector<kernels::StateCopy> translated(copies.begin(), copies.end());
  for (kernels::StateCopy& copy : translated) copy = {translate(copy.destination), translate(copy.source)};
  if (absl::Status status = translate.Check(); !status.ok()) return status;
  return real_.CopyStates(shape, translated, stream);
}

absl::Status SeparateMemoryBackend::CopyBytes(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& stream) {
  std::vector<kernels::ByteCopy> translated(copies.begin(), copies.end());
  for (kernels::ByteCopy& copy : translated) {
    copy.destination = HostAddress(copy.destination);
    copy.source = HostAddress(copy.source);
  }
  return real_.CopyBytes(translated, stream);
}

absl::Status SeparateMemoryBackend::ZeroBytes(absl::Span<const kernels::ByteRange> ranges, kernels::Stream& stream) {
  std::vector<kernels::ByteRange> translated(ranges.begin(), ranges.end());
  for (kernels::ByteRange& range : translated) range.data = HostAddress(range.data);
  return real_.ZeroBytes(translated, stream);
}

absl::StatusOr<std::int64_t> SeparateMemoryBackend::FindNonFinite(absl::Span<const kernels::FiniteCheck> ranges,
                                                                  kernels::Stream& stream) {
  Translator translate;
  std::vector<kernels::FiniteCheck> translated(ranges.begin(), ranges.end());
  for (kernels::FiniteCheck& range : translated) range.data = translate(range.data);
  if (absl::Status status = translate.Check(); !status.ok()) return status;
  return real_.FindNonFinite(translated, stream);
}

absl::Status SeparateMemoryBackend::Synchronize(kernels::Stream& stream) { return real_.Synchronize(stream); }

}  // namespace gdpcache::test
