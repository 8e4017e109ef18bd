#include "tests/support/asynchronous_backend.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace gdpcache::test {

/// A stream's work; shared by the stream and the device.
class AsynchronousBackend::Queue {
 public:
  std::deque<Work> work;
  std::int64_t given = 0;
  std::int64_t done = 0;
  absl::Status status;  // the first error
};

class AsynchronousBackend::Handle final : public kernels::Stream {
 public:
  std::shared_ptr<Queue> queue = std::make_shared<Queue>();
};

/// An event: how much of the queue's work comes before it.
class AsynchronousBackend::Mark final : public kernels::Event {
 public:
  explicit Mark(std::shared_ptr<Queue> the_queue) : queue(std::move(the_queue)), given(queue->given) {}
  const std::shared_ptr<Queue> queue;
  const std::int64_t given;
};

AsynchronousBackend::AsynchronousBackend(kernels::Backend& real)
    : real_(real), real_stream_(*real.CreateStream()), thread_([this] { Run(); }) {}

AsynchronousBackend::~AsynchronousBackend() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void AsynchronousBackend::Hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void AsynchronousBackend::Resume() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void AsynchronousBackend::WaitUntilStuck() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !running_ && NextLocked() == nullptr; });
}

std::int64_t AsynchronousBackend::launches() const {
  const std::lock_guard lock(mutex_);
  return launches_;
}

std::int64_t AsynchronousBackend::launches_by_lookers() const {
  const std::lock_guard lock(mutex_);
  return launches_by_lookers_;
}

std::int64_t AsynchronousBackend::frees_by_lookers() const {
  const std::lock_guard lock(mutex_);
  return frees_by_lookers_;
}

absl::StatusOr<kernels::Buffer> AsynchronousBackend::Allocate(std::size_t size, kernels::MemoryKind kind) {
  absl::StatusOr<kernels::Buffer> buffer = real_.Allocate(size, kind);
  if (!buffer.ok() || buffer->data() == nullptr) return buffer;
  void* const data = buffer->data();
  const std::lock_guard lock(mutex_);
  buffers_.emplace(data, *std::move(buffer));
  return kernels::Buffer(this, data, size, kind);
}

void AsynchronousBackend::Free(void* data, std::size_t /*size*/, kernels::MemoryKind /*kind*/) noexcept {
  const std::lock_guard lock(mutex_);
  buffers_.erase(data);
  if (lookers_.contains(std::this_thread::get_id())) ++frees_by_lookers_;
}

void AsynchronousBackend::RefuseValues() {
  const std::lock_guard lock(mutex_);
  writes_values_ = false;
}

void* AsynchronousBackend::MakeEvent(bool happened) {
  const std::lock_guard lock(mutex_);
  return &client_events_.emplace_back(happened);
}

void AsynchronousBackend::Happen(void* event) {
  const std::lock_guard lock(mutex_);
  *static_cast<bool*>(event) = true;
  changed_.notify_all();
}

std::shared_ptr<AsynchronousBackend::Queue> AsynchronousBackend::NextLocked() {
  const auto next = std::find_if(queues_.begin(), queues_.end(), [](const std::shared_ptr<Queue>& queue) {
    return !queue->work.front().can_begin || queue->work.front().can_begin();
  });
  return next == queues_.end() ? nullptr : *next;
}

void AsynchronousBackend::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    const std::shared_ptr<Queue> queue = NextLocked();
    if (queue == nullptr) {
      if (stopping_) return;
      changed_.wait(lock);
      continue;
    }
    const Work work = std::move(queue->work.front());
    queue->work.pop_front();
    if (queue->work.empty()) queues_.remove(queue);
    if (work.run) {
      running_ = true;
      lock.unlock();
      absl::Status status = work.run(*real_stream_);
      if (status.ok()) status = real_.Synchronize(*real_stream_);
      lock.lock();
      running_ = false;
      queue->status.Update(status);
    }
    if (work.end) work.end();
    ++queue->done;
    changed_.notify_all();
  }
}

void AsynchronousBackend::Give(kernels::Stream& stream, Work work) {
  const std::shared_ptr<Queue>& queue = static_cast<Handle&>(stream).queue;
  const std::lock_guard lock(mutex_);
  queue->work.push_back(std::move(work));
  ++queue->given;
  queues_.remove(queue);
  queues_.push_front(queue);
  changed_.notify_all();
}

absl::StatusOr<std::unique_ptr<kernels::Stream>> AsynchronousBackend::CreateStream() {
  return std::make_unique<Handle>();
}

absl::Status AsynchronousBackend::RunRecurrence(const kernels::RecurrenceShape& shape,
                                                absl::Span<const kernels::Sequence> sequences,
                                                kernels::Stream& stream) {
  if (absl::Status status = kernels::ValidateRecurrence(shape, sequences); !status.ok()) return status;
  std::vector<kernels::Sequence> copies(sequences.begin(), sequences.end());
  std::vector<std::vector<kernels::BoundaryStore>> boundaries;
  boundaries.reserve(copies.size());
  for (const kernels::Sequence& sequence : sequences) {
    boundaries.emplace_back(sequence.boundaries.begin(), sequence.boundaries.end());
  }
  Work work;
  work.can_begin = [this] { return !held_; };
  work.run = [this, shape, copies = std::move(copies),
              boundaries = std::move(boundaries)](kernels::Stream& real) mutable {
    for (std::size_t i = 0; i < copies.size(); ++i) copies[i].boundaries = boundaries[i];
    return real_.RunRecurrence(shape, copies, real);
  };
  Give(stream, std::move(work));
  const std::lock_guard lock(mutex_);
  ++launches_;
  if (lookers_.contains(std::this_thread::get_id())) ++launches_by_lookers_;
  return absl::OkStatus();
}

absl::Status AsynchronousBackend::CopyStates(const kernels::RecurrenceShape& shape,
                                             absl::Span<const kernels::StateCopy> copies, kernels::Stream& stream) {
  if (absl::Status status = kernels::ValidateStateCopies(shape, copies); !status.ok()) return status;
  Work work;
  work.run = [this, shape, copies = std::vector(copies.begin(), copies.end())](kernels::Stream& real) {
    return real_.CopyStates(shape, copies, real);
  };
  Give(stream, std::move(work));
  return absl::OkStatus();
}

absl::Status AsynchronousBackend::CopyBytes(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& stream) {
  Work work;
  work.run = [this, copies = std::vector(copies.begin(), copies.end())](kernels::Stream& real) {
    return real_.CopyBytes(copies, real);
  };
  Give(stream, std::move(work));
  return absl::OkStatus();
}

absl::Status AsynchronousBackend::ZeroBytes(absl::Span<const kernels::ByteRange> ranges, kernels::Stream& stream) {
  Work work;
  work.run = [this, ranges = std::vector(ranges.begin(), ranges.end())](kernels::Stream& real) {
    return real_.ZeroBytes(ranges, real);
  };
  Give(stream, std::move(work));
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> AsynchronousBackend::FindNonFinite(absl::Span<const kernels::FiniteCheck> ranges,
                                                                kernels::Stream& stream) {
  auto found = std::make_shared<std::int64_t>(-1);
  Work work;
  work.run = [this, found, ranges = std::vector(ranges.begin(), ranges.end())](kernels::Stream& real) -> absl::Status {
    const absl::StatusOr<std::int64_t> result = real_.FindNonFinite(ranges, real);
    if (result.ok()) *found = *result;
    return result.status();
  };
  Give(stream, std::move(work));
  if (absl::Status status = Synchronize(stream); !status.ok()) return status;
  return *found;
}

absl::Status AsynchronousBackend::Synchronize(kernels::Stream& stream) {
  const std::shared_ptr<Queue>& queue = static_cast<Handle&>(stream).queue;
  std::unique_lock lock(mutex_);
  const std::int64_t given = queue->given;
  changed_.wait(lock, [&] { return queue->done >= given; });
  return queue->status;
}

absl::StatusOr<std::unique_ptr<kernels::Event>> AsynchronousBackend::Record(kernels::Stream& stream) {
  const std::lock_guard lock(mutex_);
  return std::make_unique<Mark>(static_cast<Handle&>(stream).queue);
}

absl::Status AsynchronousBackend::Wait(kernels::Event& event) {
  const Mark& mark = static_cast<Mark&>(event);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return mark.queue->done >= mark.given; });
  return mark.queue->status;
}

absl::StatusOr<bool> AsynchronousBackend::HasHappened(kernels::Event& event) {
  const Mark& mark = static_cast<Mark&>(event);
  const std::lock_guard lock(mutex_);
  lookers_.insert(std::this_thread::get_id());
  if (!mark.queue->status.ok()) return mark.queue->status;
  return mark.queue->done >= mark.given;
}

absl::Status AsynchronousBackend::Await(kernels::Event& event, kernels::Stream& stream) {
  const Mark& mark = static_cast<Mark&>(event);
  Work work;
  work.can_begin = [queue = mark.queue, given = mark.given] { return queue->done >= given; };
  Give(stream, std::move(work));
  return absl::OkStatus();
}

absl::StatusOr<kernels::MemorySharing::DeviceMemory> AsynchronousBackend::OpenMemory(absl::string_view /*handle*/) {
  return absl::InvalidArgumentError("handle: stands for no memory");
}

absl::StatusOr<void*> AsynchronousBackend::OpenEvent(absl::string_view /*handle*/) {
  return absl::InvalidArgumentError("handle: stands for no event");
}

bool AsynchronousBackend::HasHappened(void* event) {
  const std::lock_guard lock(mutex_);
  return *static_cast<bool*>(event);
}

absl::Status AsynchronousBackend::RecordEvent(void* event, kernels::Stream& stream) {
  {
    const std::lock_guard lock(mutex_);
    *static_cast<bool*>(event) = false;
  }
  Work work;
  work.end = [happened = static_cast<bool*>(event)] { *happened = true; };
  Give(stream, std::move(work));
  return absl::OkStatus();
}

absl::Status AsynchronousBackend::WriteValue(std::uint32_t* word, std::uint32_t value, kernels::Stream& stream) {
  {
    const std::lock_guard lock(mutex_);
    if (!writes_values_) return absl::UnimplementedError("streams write no values");
  }
  Work work;
  work.end = [word, value] { std::atomic_ref(*word).store(value, std::memory_order_release); };
  Give(stream, std::move(work));
  return absl::OkStatus();
}

}  // namespace gdpcache::test
