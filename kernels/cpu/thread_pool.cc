#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gdpcache::kernels::cpu {

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(int threads) {
  std::unique_ptr<ThreadPool> pool(new ThreadPool());
  pool->helpers_.reserve(static_cast<std::size_t>(std::max(threads - 1, 0)));
  try {
    for (int i = 1; i < threads; ++i) pool->helpers_.emplace_back([raw = pool.get()] { raw->HelperLoop(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("only ", pool->threads(), " of ", threads, " threads could be started: ", error.what()));
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  call_waiting_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Run(int max_helpers, absl::FunctionRef<void()> work) {
  const int helpers = std::min(max_helpers, threads() - 1);
  ++callers_;
  if (helpers <= 0) {
    work();
  } else {
    RunWithHelpers(helpers, work);
  }
  --callers_;
  if (calls_waiting_ > 0) call_waiting_.notify_one();
}

void ThreadPool::RunWithHelpers(int helpers, absl::FunctionRef<void()> work) {
  Call call{.work = work, .helpers_wanted = helpers};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(&call);
    ++calls_waiting_;
  }
  // Only now: whoever leaves from here on sees the call.
  const int woken = std::min(helpers, threads() - callers_);
  if (woken > 1) {
    call_waiting_.notify_all();
  } else if (woken == 1) {
    call_waiting_.notify_one();
  }
  work();
  std::unique_lock<std::mutex> lock(mutex_);
  if (call.helpers_wanted > 0) {
    waiting_.remove(&call);
    --calls_waiting_;
  }
  helper_done_.wait(lock, [&] { return call.helpers_working == 0; });
}

void ThreadPool::HelperLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    call_waiting_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Call& call = *waiting_.front();
    ++call.helpers_working;
    if (--call.helpers_wanted == 0) {
      waiting_.pop_front();
      --calls_waiting_;
    }
    lock.unlock();
    call.work();
    lock.lock();
    if (--call.helpers_working == 0) helper_done_.notify_all();
  }
}

}  // namespace gdpcache::kernels::cpu
