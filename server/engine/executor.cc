#include "server/engine/executor.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gdpcache::engine {
namespace {

constexpr int kSpareStreams = 16;
constexpr std::size_t kMostMerged = 1024;
// Of one owner's tasks, when looking for one that merges: the search holds up everybody.
constexpr std::size_t kMostSearched = 64;

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

void Executor::Submit(Owner owner, Task task) { Submit(owner, Waiting{std::move(task), nullptr}); }

void Executor::Submit(Owner owner, std::shared_ptr<MergeableTask> task) {
  Submit(owner, Waiting{nullptr, std::move(task)});
}

void Executor::Submit(Owner owner, Waiting waiting) {
  const std::lock_guard lock(mutex_);
  std::deque<Waiting>& queue = waiting_[owner];
  if (queue.empty()) turns_.push_back(owner);
  queue.push_back(std::move(waiting));
  wake_.notify_one();  // under the lock, for the task may be the last before the executor goes
}

Executor::Waiting Executor::TakeLocked() {
  const Owner owner = turns_.front();
  turns_.pop_front();
  const auto queue = waiting_.find(owner);
  Waiting next = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) {
    waiting_.erase(queue);
  } else {
    turns_.push_back(owner);
  }
  return next;
}

std::vector<std::shared_ptr<MergeableTask>> Executor::CollectLocked(std::shared_ptr<MergeableTask> first) {
  double room = 1.0 - first->share();
  std::vector<std::shared_ptr<MergeableTask>> tasks = {std::move(first)};
  const auto merges = [&](const Waiting& waiting) {
    return waiting.mergeable != nullptr && waiting.mergeable->share() <= room &&
           tasks.front()->MergesWith(*waiting.mergeable);
  };
  // One of each owner, then another one of each, ...
  for (bool found = true; found && tasks.size() < kMostMerged;) {
    found = false;
    for (const Owner owner : turns_) {
      std::deque<Waiting>& queue = waiting_.find(owner)->second;
      const auto end = queue.begin() + static_cast<std::ptrdiff_t>(std::min(queue.size(), kMostSearched));
      const auto next = std::find_if(queue.begin(), end, merges);
      if (next == end || tasks.size() == kMostMerged) continue;
      room -= next->mergeable->share();
      tasks.push_back(std::move(next->mergeable));
      queue.erase(next);
      found = true;
    }
    std::erase_if(turns_, [this](Owner owner) {
      const auto queue = waiting_.find(owner);
      if (!queue->second.empty()) return false;
      waiting_.erase(queue);
      return true;
    });
  }
  return tasks;
}

void Executor::RunHere(Owner owner, Task task) {
  std::unique_ptr<kernels::Stream> stream;
  {
    const std::lock_guard lock(mutex_);
    if (!spare_streams_.empty()) {
      stream = std::move(spare_streams_.back());
      spare_streams_.pop_back();
      ++running_;
    }
  }
  if (stream == nullptr) return Submit(owner, std::move(task));
  task(*stream);
  const std::lock_guard lock(mutex_);
  --running_;
  spare_streams_.push_back(std::move(stream));
}

std::int64_t Executor::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

void Executor::Work(kernels::Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !turns_.empty(); });
    if (turns_.empty()) return;
    Waiting next = TakeLocked();
    std::vector<std::shared_ptr<MergeableTask>> merged;
    if (next.mergeable != nullptr) merged = CollectLocked(std::move(next.mergeable));
    const auto count = static_cast<std::int64_t>(std::max<std::size_t>(1, merged.size()));
    running_ += count;
    lock.unlock();
    if (merged.empty()) {
      next.task(stream);
    } else {
      merged.front()->RunMerged(merged, stream);
    }
    next.task = nullptr;  // what they own goes without the lock
    merged.clear();
    lock.lock();
    running_ -= count;
  }
}

}  // namespace gdpcache::engine
