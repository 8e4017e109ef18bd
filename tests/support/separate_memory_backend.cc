#include "tests/support/separate_memory_backend.h"

#include <deque>
#include <functional>
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

std::vector<kernels::ByteCopy> OnTheHost(absl::Span<const kernels::ByteCopy> copies) {
  std::vector<kernels::ByteCopy> translated(copies.begin(), copies.end());
  for (kernels::ByteCopy& copy : translated) {
    copy.destination = SeparateMemoryBackend::HostAddress(copy.destination);
    copy.source = SeparateMemoryBackend::HostAddress(copy.source);
  }
  return translated;
}

/// Work that has been given and not yet been done.
class PutOffStream final : public kernels::Stream {
 public:
  using Work = std::function<absl::Status(kernels::Stream&)>;

  explicit PutOffStream(std::unique_ptr<kernels::Stream> real) : real_(std::move(real)) {}

  kernels::Stream& real() { return *real_; }
  void Add(Work work) { work_.push_back(std::move(work)); }
  void AddAside(Work work) {
    aside_.push_back(std::move(work));
    ++given_aside_;
  }
  std::int64_t given_aside() const { return given_aside_; }

  /// Does all the work, then the first `count` copies aside of those ever given.
  absl::Status DoWithAside(std::int64_t count) {
    while (!work_.empty()) {
      const Work work = std::move(work_.front());
      work_.pop_front();
      status_.Update(work(*real_));
    }
    for (; done_aside_ < count; ++done_aside_) {
      const Work work = std::move(aside_.front());
      aside_.pop_front();
      status_.Update(work(*real_));
    }
    return std::exchange(status_, absl::OkStatus());
  }

 private:
  const std::unique_ptr<kernels::Stream> real_;
  std::deque<Work> work_;
  std::deque<Work> aside_;
  std::int64_t given_aside_ = 0;
  std::int64_t done_aside_ = 0;
  absl::Status status_;
};

class PutOffEvent final : public kernels::Event {
 public:
  explicit PutOffEvent(PutOffStream& stream) : stream_(stream), given_aside_(stream.given_aside()) {}
  absl::Status Wait() { return stream_.DoWithAside(given_aside_); }

 private:
  PutOffStream& stream_;
  const std::int64_t given_aside_;
};

void PutOff(kernels::Stream& stream, PutOffStream::Work work) {
  static_cast<PutOffStream&>(stream).Add(std::move(work));
}

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

absl::StatusOr<std::unique_ptr<kernels::Stream>> SeparateMemoryBackend::CreateStream() {
  absl::StatusOr<std::unique_ptr<kernels::Stream>> real = real_.CreateStream();
  if (!real.ok()) return real.status();
  return std::make_unique<PutOffStream>(*std::move(real));
}

absl::Status SeparateMemoryBackend::RunRecurrence(const kernels::RecurrenceShape& shape,
                                                  absl::Span<const kernels::Sequence> sequences,
                                                  kernels::Stream& stream) {
  if (absl::Status status = kernels::ValidateRecurrence(shape, sequences); !status.ok()) return status;
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
  }
  if (absl::Status status = translate.Check(); !status.ok()) return status;
  PutOff(stream, [this, shape, translated = std::move(translated),
                  boundaries = std::move(boundaries)](kernels::Stream& real) mutable {
    for (std::size_t i = 0; i < translated.size(); ++i) translated[i].boundaries = boundaries[i];
    return real_.RunRecurrence(shape, translated, real);
  });
  return absl::OkStatus();
}

absl::Status SeparateMemoryBackend::CopyStates(const kernels::RecurrenceShape& shape,
                                               absl::Span<const kernels::StateCopy> copies, kernels::Stream& stream) {
  if (absl::Status status = kernels::ValidateStateCopies(shape, copies); !status.ok()) return status;
  Translator translate;
  std::vector<kernels::StateCopy> translated(copies.begin(), copies.end());
  for (kernels::StateCopy& copy : translated) copy = {translate(copy.destination), translate(copy.source)};
  if (absl::Status status = translate.Check(); !status.ok()) return status;
  PutOff(stream, [this, shape, translated = std::move(translated)](kernels::Stream& real) {
    return real_.CopyStates(shape, translated, real);
  });
  return absl::OkStatus();
}

absl::Status SeparateMemoryBackend::CopyBytes(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& stream) {
  PutOff(stream,
         [this, translated = OnTheHost(copies)](kernels::Stream& real) { return real_.CopyBytes(translated, real); });
  return absl::OkStatus();
}

absl::Status SeparateMemoryBackend::CopyBytesAhead(absl::Span<const kernels::ByteCopy> copies,
                                                   kernels::Stream& stream) {
  return real_.CopyBytes(OnTheHost(copies), static_cast<PutOffStream&>(stream).real());
}

absl::Status SeparateMemoryBackend::CopyBytesAside(absl::Span<const kernels::ByteCopy> copies,
                                                   kernels::Stream& stream) {
  static_cast<PutOffStream&>(stream).AddAside(
      [this, translated = OnTheHost(copies)](kernels::Stream& real) { return real_.CopyBytes(translated, real); });
  return absl::OkStatus();
}

absl::Status SeparateMemoryBackend::ZeroBytes(absl::Span<const kernels::ByteRange> ranges, kernels::Stream& stream) {
  std::vector<kernels::ByteRange> translated(ranges.begin(), ranges.end());
  for (kernels::ByteRange& range : translated) range.data = HostAddress(range.data);
  PutOff(stream, [this, translated = std::move(translated)](kernels::Stream& real) {
    return real_.ZeroBytes(translated, real);
  });
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> SeparateMemoryBackend::FindNonFinite(absl::Span<const kernels::FiniteCheck> ranges,
                                                                  kernels::Stream& stream) {
  Translator translate;
  std::vector<kernels::FiniteCheck> translated(ranges.begin(), ranges.end());
  for (kernels::FiniteCheck& range : translated) range.data = translate(range.data);
  if (absl::Status status = translate.Check(); !status.ok()) return status;
  if (absl::Status status = Synchronize(stream); !status.ok()) return status;
  return real_.FindNonFinite(translated, static_cast<PutOffStream&>(stream).real());
}

absl::Status SeparateMemoryBackend::Synchronize(kernels::Stream& stream) {
  auto& put_off = static_cast<PutOffStream&>(stream);
  return put_off.DoWithAside(put_off.given_aside());
}

absl::StatusOr<std::unique_ptr<kernels::Event>> SeparateMemoryBackend::Record(kernels::Stream& stream) {
  return std::make_unique<PutOffEvent>(static_cast<PutOffStream&>(stream));
}

absl::Status SeparateMemoryBackend::Wait(kernels::Event& event) { return static_cast<PutOffEvent&>(event).Wait(); }

}  // namespace gdpcache::test
