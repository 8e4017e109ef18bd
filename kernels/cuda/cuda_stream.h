#ifndef GDPCACHE_KERNELS_CUDA_CUDA_STREAM_H_
#define GDPCACHE_KERNELS_CUDA_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace gdpcache::kernels::cuda {

/// A CUDA stream with the scratch memory its calls need. Used by one thread at a time, with the stream's device
/// current.
class CudaStream final : public Stream {
 public:
  /// Room for descriptors: written by the host at `host`, read by kernels at `device` after Upload.
  class Scratch {
   public:
    std::byte* host() const { return static_cast<std::byte*>(host_); }
    std::byte* device() const { return static_cast<std::byte*>(device_); }

   private:
    friend class CudaStream;
    Scratch() = default;

    void* host_ = nullptr;  // pinned
    void* device_ = nullptr;
    std::size_t capacity_ = 0;
    cudaEvent_t last_use_ = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(int device);
  ~CudaStream() override;

  cudaStream_t get() const { return stream_; }

  /// A queue for copies that run ahead of the stream's work; JoinUploads makes later work wait for what is in it.
  cudaStream_t uploads() const { return uploads_; }
  absl::Status JoinUploads();

  /// A queue for copies that later work does not wait for, after all that the stream has been given so far.
  absl::StatusOr<cudaStream_t> ForkDownloads();

  /// The queue whose end comes behind all that the stream has been given so far.
  absl::StatusOr<cudaStream_t> Last();

  /// Waits until everything is complete.
  absl::Status Synchronize();

  /// Scratch of at least `size` bytes, aligned to 256, that no earlier call still uses. Waits for the oldest call
  /// when eight are under way.
  absl::StatusOr<Scratch*> AcquireScratch(std::size_t size);

  /// Queues the copy of the first `size` bytes to the device, ahead of what the stream is still busy with.
  absl::Status Upload(const Scratch& scratch, std::size_t size);

  /// Says that everything that uses the scratch has been queued.
  absl::Status Release(Scratch* scratch);

  /// Two zeros in device memory for kernels that count and leave zeros behind.
  unsigned long long* counters() const { return counters_; }

  /// A word of device memory and one of pinned memory for a kernel's answer.
  unsigned long long* device_answer() const { return counters_ + 2; }
  unsigned long long* host_answer() const { return host_answer_; }

 private:
  explicit CudaStream(int device) : device_(device) {}
  static void Free(Scratch& scratch);

  int device_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t uploads_ = nullptr;
  cudaStream_t downloads_ = nullptr;
  cudaEvent_t uploaded_ = nullptr;
  cudaEvent_t computed_ = nullptr;
  bool has_downloads_ = false;
  unsigned long long* counters_ = nullptr;
  unsigned long long* host_answer_ = nullptr;
  std::vector<std::unique_ptr<Scratch>> scratches_;
  std::size_t oldest_ = 0;
};

/// CUDA events to be recorded again: making one takes locks of the driver that other threads may hold for long.
/// Thread-safe.
class CudaEventPool {
 public:
  CudaEventPool() = default;
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;
  ~CudaEventPool();

  /// One that nobody uses. The device must be current.
  absl::StatusOr<cudaEvent_t> Take();
  /// No thread waits for it any more. Streams may: what they wait for is what it was recorded behind when they were
  /// told to, whatever it is recorded behind later.
  void GiveBack(cudaEvent_t event);

 private:
  static constexpr std::size_t kMostKept = 64;  // launches under way at once

  std::mutex mutex_;
  std::vector<cudaEvent_t> kept_;
};

/// All need the device to be current.
class CudaEvent final : public Event {
 public:
  /// An event behind what `stream` has been given. The pool must outlive it.
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Record(cudaStream_t stream, CudaEventPool& pool);
  ~CudaEvent() override;

  cudaError_t Wait();
  cudaError_t Query();
  cudaError_t LetWait(cudaStream_t stream);

 private:
  CudaEvent(cudaEvent_t event, CudaEventPool& pool) : event_(event), pool_(pool) {}
  cudaError_t Checked(cudaError_t error);

  const cudaEvent_t event_;
  CudaEventPool& pool_;
  std::atomic<bool> is_sound_ = true;  // nothing has failed with it: it can be used again
};

}  // namespace gdpcache::kernels::cuda

#endif  // GDPCACHE_KERNELS_CUDA_CUDA_STREAM_H_
