#include "server/cache/task_thread.h"

namespace gdpcache::cache {

TaskThread::~TaskThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void TaskThread::Run(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    ++given_count_;
  }
  wake_.notify_one();
}

void TaskThread::Finish() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this, given = given_count_] { return done_count_ >= given; });
}

void TaskThread::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it owns goes without the lock
    lock.lock();
    ++done_count_;
    done_.notify_all();
  }
}

}  // namespace gdpcache::cache
