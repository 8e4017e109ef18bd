#include "kernels/cuda/cuda_stream.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cuda/cuda_check.h"

namespace gdpcache::kernels::cuda {
namespace {

constexpr std::size_t kMinScratchBytes = std::size_t{128} << 10;  // descriptors of 700 sequences
constexpr std::size_t kMaxScratches = 8;                          // calls ahead of the device; more would gain nothing
constexpr std::size_t kCounterBytes = 4 * sizeof(unsigned long long);

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(int device) {
  std::unique_ptr<CudaStream> stream(new CudaStream(device));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream->stream_, cudaStreamNonBlocking));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream->uploads_, cudaStreamNonBlocking));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream->downloads_, cudaStreamNonBlocking));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&stream->uploaded_, cudaEventDisableTiming));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&stream->computed_, cudaEventDisableTiming));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaMalloc(reinterpret_cast<void**>(&stream->counters_), kCounterBytes));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(stream->counters_, 0, kCounterBytes, stream->stream_));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaHostAlloc(reinterpret_cast<void**>(&stream->host_answer_),
                                              sizeof(unsigned long long), cudaHostAllocPortable));
  // Whoever launches the first thing must not wait for memory: others may be waiting for that thread.
  if (absl::Status status = stream->AcquireScratch(kMinScratchBytes).status(); !status.ok()) return status;
  return stream;
}

CudaStream::~CudaStream() {
  // Errors have nowhere to go: a lost device frees everything anyway.
  cudaSetDevice(device_);
  if (uploads_ != nullptr) cudaStreamSynchronize(uploads_);
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  if (downloads_ != nullptr) cudaStreamSynchronize(downloads_);
  for (const auto& scratch : scratches_) Free(*scratch);
  if (host_answer_ != nullptr) cudaFreeHost(host_answer_);
  if (counters_ != nullptr) cudaFree(counters_);
  if (computed_ != nullptr) cudaEventDestroy(computed_);
  if (uploaded_ != nullptr) cudaEventDestroy(uploaded_);
  if (downloads_ != nullptr) cudaStreamDestroy(downloads_);
  if (uploads_ != nullptr) cudaStreamDestroy(uploads_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CudaStream::Free(Scratch& scratch) {
  if (scratch.host_ != nullptr) cudaFreeHost(scratch.host_);
  if (scratch.device_ != nullptr) cudaFree(scratch.device_);
  if (scratch.last_use_ != nullptr) cudaEventDestroy(scratch.last_use_);
  scratch = Scratch();
}

absl::StatusOr<CudaStream::Scratch*> CudaStream::AcquireScratch(std::size_t size) {
  // Calls finish in the order they were given, so only the oldest needs a look.
  Scratch* scratch = nullptr;
  if (!scratches_.empty()) {
    const cudaError_t state = cudaEventQuery(scratches_[oldest_]->last_use_);
    if (state == cudaErrorNotReady) cudaGetLastError();  // no error, but it would be taken for one later
    if (state == cudaErrorNotReady && scratches_.size() == kMaxScratches) {
      GDPCACHE_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(scratches_[oldest_]->last_use_));
    } else if (state != cudaErrorNotReady) {
      GDPCACHE_RETURN_IF_CUDA_ERROR(state);
    }
    if (state == cudaSuccess || scratches_.size() == kMaxScratches) {
      scratch = scratches_[oldest_].get();
    }
  }
  if (scratch == nullptr) {
    auto fresh = std::unique_ptr<Scratch>(new Scratch());
    GDPCACHE_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&fresh->last_use_, cudaEventDisableTiming));
    scratch = fresh.get();
    scratches_.insert(scratches_.begin() + static_cast<std::ptrdiff_t>(oldest_), std::move(fresh));
  }
  oldest_ = (oldest_ + 1) % scratches_.size();

  if (scratch->capacity_ < size) {
    if (scratch->host_ != nullptr) GDPCACHE_RETURN_IF_CUDA_ERROR(cudaFreeHost(std::exchange(scratch->host_, nullptr)));
    if (scratch->device_ != nullptr) GDPCACHE_RETURN_IF_CUDA_ERROR(cudaFree(std::exchange(scratch->device_, nullptr)));
    scratch->capacity_ = 0;
    const std::size_t capacity = std::max(kMinScratchBytes, std::bit_ceil(size));
    GDPCACHE_RETURN_IF_CUDA_ERROR(cudaHostAlloc(&scratch->host_, capacity, cudaHostAllocPortable));
    GDPCACHE_RETURN_IF_CUDA_ERROR(cudaMalloc(&scratch->device_, capacity));
    scratch->capacity_ = capacity;
  }
  return scratch;
}

absl::Status CudaStream::Upload(const Scratch& scratch, std::size_t size) {
  GDPCACHE_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(scratch.device_, scratch.host_, size, cudaMemcpyHostToDevice, uploads_));
  return JoinUploads();
}

absl::Status CudaStream::JoinUploads() {
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaEventRecord(uploaded_, uploads_));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(stream_, uploaded_, 0));
  return absl::OkStatus();
}

absl::StatusOr<cudaStream_t> CudaStream::ForkDownloads() {
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaEventRecord(computed_, stream_));
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(downloads_, computed_, 0));
  has_downloads_ = true;
  return downloads_;
}

absl::StatusOr<cudaStream_t> CudaStream::Last() {
  if (!has_downloads_) return stream_;
  return ForkDownloads();
}

absl::Status CudaStream::Synchronize() {
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_));
  if (has_downloads_) GDPCACHE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(downloads_));
  has_downloads_ = false;
  return absl::OkStatus();
}

absl::Status CudaStream::Release(Scratch* scratch) {
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaEventRecord(scratch->last_use_, stream_));
  return absl::OkStatus();
}

CudaEventPool::~CudaEventPool() {
  for (cudaEvent_t event : kept_) cudaEventDestroy(event);  // an error has nowhere to go
}

absl::StatusOr<cudaEvent_t> CudaEventPool::Take() {
  {
    const std::lock_guard lock(mutex_);
    if (!kept_.empty()) {
      cudaEvent_t event = kept_.back();
      kept_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void CudaEventPool::GiveBack(cudaEvent_t event) {
  {
    const std::lock_guard lock(mutex_);
    if (kept_.size() < kMostKept) {
      kept_.push_back(event);
      return;
    }
  }
  cudaEventDestroy(event);
}

absl::StatusOr<std::unique_ptr<CudaEvent>> CudaEvent::Record(cudaStream_t stream, CudaEventPool& pool) {
  const absl::StatusOr<cudaEvent_t> taken = pool.Take();
  if (!taken.ok()) return taken.status();
  std::unique_ptr<CudaEvent> event(new CudaEvent(*taken, pool));
  event->is_sound_ = false;
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaEventRecord(event->event_, stream));
  event->is_sound_ = true;
  return event;
}

CudaEvent::~CudaEvent() {
  if (is_sound_) {
    pool_.GiveBack(event_);
  } else {
    cudaEventDestroy(event_);
  }
}

cudaError_t CudaEvent::Wait() { return Checked(cudaEventSynchronize(event_)); }

cudaError_t CudaEvent::Query() { return Checked(cudaEventQuery(event_)); }

cudaError_t CudaEvent::LetWait(cudaStream_t stream) { return Checked(cudaStreamWaitEvent(stream, event_, 0)); }

cudaError_t CudaEvent::Checked(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) is_sound_ = false;
  return error;
}

}  // namespace gdpcache::kernels::cuda
