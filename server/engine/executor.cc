#include "server/engine/executor.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gdpcache::engine {
namespace {

constexpr int kSpareStreams = 16;
constexpr std::size_t kMostMerged = 1024;
// Of one owner's tasks, when looking for one that merges: the search holds up everybody.
constexpr std::int64_t kMostSearched = 64;
// Workers that do tasks that would merge. One is staged or told of while the other one computes; with more of them
// each would find less company.
constexpr std::ptrdiff_t kMostAlike = 2;

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

void Executor::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_->notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void Executor::Submit(Owner owner, Task task, Here here) { Submit(owner, Waiting{std::move(task), nullptr}, here); }

void Executor::Submit(Owner owner, std::shared_ptr<MergeableTask> task, Here here) {
  Submit(owner, Waiting{nullptr, std::move(task)}, here);
}

void Executor::Submit(Owner owner, Waiting waiting, Here here) {
  std::unique_lock lock(mutex_);
  const bool is_idle = turns_.empty() && busy_ == 0;
  const bool is_mergeable = waiting.mergeable != nullptr;
  if ((here == Here::kAlways || (here == Here::kWhenIdle && is_idle)) && HasStreamsLocked(is_mergeable)) {
    std::unique_ptr<kernels::Stream> stream = std::move(spare_streams_.back());
    spare_streams_.pop_back();
    if (is_mergeable) promised_.push_back(stream.get());
    if (here == Here::kWhenIdle) ++busy_;
    ++running_;
    lock.unlock();
    return RunHere(std::move(waiting), here, std::move(stream));
  }
  Queue& queue = waiting_[owner];
  queue.owner = owner;
  if (queue.tasks.empty()) turns_.push_back(&queue);
  queue.tasks.push_back(std::move(waiting));
  if (!CallsWorkerLocked()) return;
  const auto wake = wake_;
  lock.unlock();
  wake->notify_one();
}

void Executor::RunHere(Waiting waiting, Here here, std::unique_ptr<kernels::Stream> stream) {
  if (waiting.mergeable != nullptr) {
    waiting.mergeable->RunMerged({&waiting.mergeable, 1}, *stream)();
  } else {
    waiting.task(*stream);
  }
  const std::lock_guard lock(mutex_);
  std::erase(promised_, stream.get());
  spare_streams_.push_back(std::move(stream));
  if (here == Here::kWhenIdle) --busy_;
  --running_;
}

std::unique_ptr<kernels::Stream> Executor::TakeStream(std::int64_t tasks, const kernels::Stream& of_task) {
  const std::lock_guard lock(mutex_);
  std::erase(promised_, &of_task);
  if (spare_streams_.size() <= promised_.size()) return nullptr;
  std::unique_ptr<kernels::Stream> stream = std::move(spare_streams_.back());
  spare_streams_.pop_back();
  running_ += tasks;
  return stream;
}

void Executor::GiveBack(std::unique_ptr<kernels::Stream> stream, std::int64_t tasks) {
  const std::lock_guard lock(mutex_);
  spare_streams_.push_back(std::move(stream));
  running_ -= tasks;
}

bool Executor::HasStream() const {
  const std::lock_guard lock(mutex_);
  return HasStreamsLocked(true);
}

std::int64_t Executor::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

bool Executor::CallsWorkerLocked() {
  if (called_ > 0 || sleeping_ == 0 || NextLocked() == turns_.end()) return false;
  ++called_;
  return true;
}

bool Executor::HasToWaitLocked(const Waiting& waiting) const {
  if (waiting.mergeable == nullptr) return false;
  return std::count_if(merging_.begin(), merging_.end(), [&waiting](const MergeableTask* task) {
           return task->MergesWith(*waiting.mergeable);
         }) >= kMostAlike;
}

std::deque<Executor::Queue*>::iterator Executor::NextLocked() {
  return std::find_if(turns_.begin(), turns_.end(),
                      [this](const Queue* queue) { return !HasToWaitLocked(queue->tasks.front()); });
}

Executor::Taken Executor::TakeLocked(std::deque<Queue*>::iterator turn) {
  Queue& queue = **turn;
  turns_.erase(turn);
  Waiting next = std::move(queue.tasks.front());
  queue.tasks.pop_front();
  if (queue.tasks.empty()) {
    waiting_.erase(queue.owner);
  } else {
    turns_.push_back(&queue);
  }
  if (next.mergeable == nullptr) return {std::move(next.task), {}};
  return {nullptr, CollectLocked(std::move(next.mergeable))};
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
    for (Queue* const queue : turns_) {
      std::list<Waiting>& waiting = queue->tasks;
      const auto end = std::ranges::next(waiting.begin(), kMostSearched, waiting.end());
      const auto next = std::find_if(waiting.begin(), end, merges);
      if (next == end || tasks.size() == kMostMerged) continue;
      room -= next->mergeable->share();
      tasks.push_back(std::move(next->mergeable));
      waiting.erase(next);
      found = true;
    }
    std::erase_if(turns_, [this](Queue* queue) {
      if (!queue->tasks.empty()) return false;
      waiting_.erase(queue->owner);
      return true;
    });
  }
  return tasks;
}

void Executor::Work(kernels::Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    auto turn = NextLocked();
    while (turn == turns_.end()) {
      if (stopping_ && turns_.empty()) return;
      ++sleeping_;
      wake_->wait(lock);
      --sleeping_;
      called_ = std::max(called_ - 1, 0);
      turn = NextLocked();
    }
    Taken taken = TakeLocked(turn);
    const auto count = static_cast<std::int64_t>(std::max<std::size_t>(1, taken.merged.size()));
    ++busy_;
    running_ += count;
    if (!taken.merged.empty()) merging_.push_back(taken.merged.front().get());
    if (stopping_ && turns_.empty()) wake_->notify_all();
    const bool calls = CallsWorkerLocked();
    lock.unlock();
    if (calls) wake_->notify_one();
    if (taken.merged.empty()) {
      taken.task(stream);
    } else {
      RunMerged(taken.merged, stream);
    }
    taken = {};  // what the tasks own goes without the lock
    lock.lock();
    --busy_;
    running_ -= count;
  }
}

void Executor::RunMerged(absl::Span<const std::shared_ptr<MergeableTask>> tasks, kernels::Stream& stream) {
  absl::AnyInvocable<void()> tell = tasks.front()->RunMerged(tasks, stream);
  bool calls = false;
  {
    const std::lock_guard lock(mutex_);
    merging_.erase(std::find(merging_.begin(), merging_.end(), tasks.front().get()));
    calls = CallsWorkerLocked();
  }
  if (calls) wake_->notify_one();
  tell();
}

}  // namespace gdpcache::engine
