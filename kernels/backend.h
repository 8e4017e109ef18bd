#ifndef GDPCACHE_KERNELS_BACKEND_H_
#define GDPCACHE_KERNELS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/memory_sharing.h"
#include "kernels/recurrence.h"

namespace gdpcache::kernels {

/// Where a buffer lives.
enum class MemoryKind : std::uint8_t {
  kDevice,  // the state cache's own memory: the GPU's, or plain memory on the CPU backend
  kHost,    // host memory the backend copies from and to at full speed (pinned where there is a GPU)
};

class Backend;

/// Owns one allocation of a backend; freed with it. Movable. The backend must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, void* data, std::size_t size, MemoryKind kind)
      : backend_(backend), data_(data), size_(size), kind_(kind) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  void* data() const { return data_; }
  std::byte* bytes() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }
  MemoryKind kind() const { return kind_; }

  void swap(Buffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(kind_, other.kind_);
  }

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_ = 0;
  MemoryKind kind_ = MemoryKind::kHost;
};

/// An ordered queue of work. Operations given the same stream run in the order they were given; different streams are
/// unordered. A stream is used by one thread at a time; the backend must outlive it.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;
};

/// A point in a stream's work, to be waited for, by threads and by other streams. Thread-safe; the backend must outlive
/// it. It may go before it has happened: streams that wait for it go on doing so.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;
};

/// What runs the arithmetic, for people and for GetServerInfo.
struct DeviceInfo {
  std::string backend;            // as --backend names it: "cpu" or "cuda"
  std::string device;             // e.g. "AVX3_ZEN4, 8 threads" or "NVIDIA H200 (device 0)"
  std::int64_t memory_bytes = 0;  // memory the state pool may at most come from
  /// kDevice and all host memory are one. If false, RunRecurrence, CopyStates and FindNonFinite take kDevice memory
  /// only, and the host must not touch that: CopyBytes goes between the two.
  bool unified_memory = true;
};

/// `size` bytes from `source` to `destination`; the two do not overlap.
struct ByteCopy {
  void* destination = nullptr;
  const void* source = nullptr;
  std::size_t size = 0;
};

/// `size` bytes to become zero.
struct ByteRange {
  void* data = nullptr;
  std::size_t size = 0;
};

/// A memory range to look through for NaN and infinity.
struct FiniteCheck {
  const void* data = nullptr;
  std::int64_t elements = 0;
  DataType dtype = DataType::kFloat32;
};

/// The arithmetic and the memory it runs on. Implementations are thread-safe; work given to a stream is complete once
/// Synchronize(stream) has returned OK. Arguments given by span or reference need only live until the call returns;
/// memory that descriptors point to must stay valid until the work is complete. Ranges may be empty, wherever they
/// point. A call that returns an error has queued nothing, unless the status is UNAVAILABLE: the device is lost for
/// good, and the server ends. What is implemented here does for a backend whose work is complete when the call that
/// gave it returns.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual DeviceInfo device_info() const = 0;

  /// nullptr where all memory is the host's: then nothing needs to be pinned, and there are no events. As long-lived as
  /// the backend.
  virtual MemorySharing* memory_sharing() { return nullptr; }

  /// At least 64-byte aligned, content undefined; where `size` is 0 there need be no memory. RESOURCE_EXHAUSTED names
  /// the size asked for when there is not enough.
  virtual absl::StatusOr<Buffer> Allocate(std::size_t size, MemoryKind kind) = 0;

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;

  /// The recurrence of recurrence.h, whose ValidateRecurrence comes first.
  virtual absl::Status RunRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences,
                                     Stream& stream) = 0;

  /// Copies whole states of `shape` (heads, key_dim, value_dim), in any order. ValidateStateCopies comes first.
  virtual absl::Status CopyStates(const RecurrenceShape& shape, absl::Span<const StateCopy> copies, Stream& stream) = 0;

  /// Copies bytes between any of the backend's memory kinds and ordinary host memory, in any order.
  virtual absl::Status CopyBytes(absl::Span<const ByteCopy> copies, Stream& stream) = 0;

  /// CopyBytes that need not wait for work given to the stream before, which must not touch what they write; work given
  /// later finds them done.
  virtual absl::Status CopyBytesAhead(absl::Span<const ByteCopy> copies, Stream& stream) {
    return CopyBytes(copies, stream);
  }

  /// CopyBytes that wait for work given to the stream before, as usual, but that work given later need not wait for; it
  /// must not write what they read or write.
  virtual absl::Status CopyBytesAside(absl::Span<const ByteCopy> copies, Stream& stream) {
    return CopyBytes(copies, stream);
  }

  virtual absl::Status ZeroBytes(absl::Span<const ByteRange> ranges, Stream& stream) = 0;

  /// Waits for the stream, then returns the index of the first range that holds a NaN or an infinity, or -1.
  virtual absl::StatusOr<std::int64_t> FindNonFinite(absl::Span<const FiniteCheck> ranges, Stream& stream) = 0;

  /// Waits until all work given to the stream is complete, copies aside included.
  virtual absl::Status Synchronize(Stream& stream) = 0;

  /// The point behind all work given to the stream so far, copies aside included; and the wait for it.
  virtual absl::StatusOr<std::unique_ptr<Event>> Record(Stream& /*stream*/) { return std::make_unique<Event>(); }
  virtual absl::Status Wait(Event& /*event*/) { return absl::OkStatus(); }

  /// Whether all work before the event is complete, without waiting for it. An error is one of that work, as Wait's is.
  virtual absl::StatusOr<bool> HasHappened(Event& /*event*/) { return true; }

  /// Work given to the stream from now on begins when the event, which may be of another stream, has happened; only
  /// copies ahead do not wait for it. No thread waits.
  virtual absl::Status Await(Event& /*event*/, Stream& /*stream*/) { return absl::OkStatus(); }

 private:
  friend class Buffer;
  virtual void Free(void* data, std::size_t size, MemoryKind kind) noexcept = 0;
};

inline Buffer::~Buffer() {
  if (data_ != nullptr) backend_->Free(data_, size_, kind_);
}

/// Which backend a server should use.
enum class BackendChoice : std::uint8_t { kAuto, kCpu, kCuda };

struct BackendOptions {
  BackendChoice choice = BackendChoice::kAuto;  // kAuto: CUDA if a usable device is present, else CPU
  int cpu_threads = 0;                          // 0: one per available core
  int cuda_device = 0;
};

/// Creates a backend. UNIMPLEMENTED when one is asked for that was not built in; UNAVAILABLE when it has no usable
/// device.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_BACKEND_H_
