#include "server/engine/executor.h"

#include <utility>

namespace gdpcache::engine {
namespace {

constexpr int kSpareStreams = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(kernels::Backend& backend, int workers) {
  const auto create_streams = [&backend](int count, std::vector<std::unique_ptr<kernels::Stream>>& streams) {
    for (int i = 0; i < count; ++i) {
      absl::StatusOr<std::unique_ptr<kernels::Stream>> stream = backend.CreateStream();
      if (!stream.ok()) return stream.status();
      streams.push_back(*std::move(stream));
    }
    return absl::OkStatus();
  };
  std::unique_ptr<Executor> executor(new Executor);
  if (absl::Status status = create_streams(kSpareStreams, executor->spare_streams_); !status.ok()) return status;
  if (absl::Status status = create_streams(workers, executor->worker_streams_); !status.ok()) return status;
  for (const std::unique_ptr<kernels::Stream>& stream : executor->worker_streams_) {
    executor->workers_.emplace_back([self = executor.get(), &stream = *stream] { self->Work(stream); });
  }
  return executor;
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Executor::Submit(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  wake_.notify_one();  // under the lock, for the task may be the last before the executor goes
}

void Executor::RunHere(Task task) {
  std::unique_ptr<kernels::Stream> stream;
  {
    const std::lock_guard lock(mutex_);
    if (!spare_streams_.empty()) {
      stream = std::move(spare_streams_.back());
      spare_streams_.pop_back();
    }
  }
  if (stream == nullptr) return Submit(std::move(task));
  task(*stream);
  const std::lock_guard lock(mutex_);
  spare_streams_.push_back(std::move(stream));
}

void Executor::Work(kernels::Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task(stream);
    task = nullptr;  // what it owns goes without the lock
    lock.lock();
  }
}

}  // namespace gdpcache::engine
