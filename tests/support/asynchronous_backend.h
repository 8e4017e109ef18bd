#ifndef GDPCACHE_TESTS_SUPPORT_ASYNCHRONOUS_BACKEND_H_
#define GDPCACHE_TESTS_SUPPORT_ASYNCHRONOUS_BACKEND_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "kernels/backend.h"
#include "kernels/memory_sharing.h"

namespace gdpcache::test {

/// A backend with memory, a thread and events of its own, as a GPU has: calls return before their work is done, streams
/// wait for each other, and events can be shared with a client, whom the test plays. Of the work that can be done the
/// device takes what came last, so that whatever is not ordered happens in the wrong order. A test may stop it from
/// running the recurrence. Thread-safe.
class AsynchronousBackend final : public kernels::Backend, public kernels::MemorySharing {
 public:
  /// `real`, a SeparateMemoryBackend, must outlive this. One stream of it does the work.
  explicit AsynchronousBackend(kernels::Backend& real);
  ~AsynchronousBackend() override;

  /// No recurrence runs, nor what comes behind one, until Resume.
  void Hold();
  void Resume();
  /// Waits until the device can do no more of what it has been given.
  void WaitUntilStuck();
  /// Recurrences that streams have been given since the beginning.
  std::int64_t launches() const;

  /// From now on no stream writes a value.
  void RefuseValues();

  /// Recurrences given, and memory freed, by threads that have asked whether work has happened: others wait for them to
  /// come round again, and freeing memory of a GPU waits for all its work.
  std::int64_t launches_by_lookers() const;
  std::int64_t frees_by_lookers() const;

  /// An event of a client; Happen makes it happen. Lives as long as the backend.
  void* MakeEvent(bool happened);
  void Happen(void* event);

  kernels::DeviceInfo device_info() const override { return real_.device_info(); }
  kernels::MemorySharing* memory_sharing() override { return this; }
  absl::StatusOr<kernels::Buffer> Allocate(std::size_t size, kernels::MemoryKind kind) override;
  absl::StatusOr<std::unique_ptr<kernels::Stream>> CreateStream() override;
  absl::Status RunRecurrence(const kernels::RecurrenceShape& shape, absl::Span<const kernels::Sequence> sequences,
                             kernels::Stream& stream) override;
  absl::Status CopyStates(const kernels::RecurrenceShape& shape, absl::Span<const kernels::StateCopy> copies,
                          kernels::Stream& stream) override;
  absl::Status CopyBytes(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& stream) override;
  absl::Status ZeroBytes(absl::Span<const kernels::ByteRange> ranges, kernels::Stream& stream) override;
  absl::StatusOr<std::int64_t> FindNonFinite(absl::Span<const kernels::FiniteCheck> ranges,
                                             kernels::Stream& stream) override;
  absl::Status Synchronize(kernels::Stream& stream) override;
  absl::StatusOr<std::unique_ptr<kernels::Event>> Record(kernels::Stream& stream) override;
  absl::Status Wait(kernels::Event& event) override;
  absl::StatusOr<bool> HasHappened(kernels::Event& event) override;
  absl::Status Await(kernels::Event& event, kernels::Stream& stream) override;

  std::string device_uuid() const override { return "GPU-of-a-test"; }
  absl::Status Pin(void* /*data*/, std::size_t /*size*/) override { return absl::OkStatus(); }
  void Unpin(void* /*data*/) noexcept override {}
  absl::StatusOr<DeviceMemory> OpenMemory(absl::string_view handle) override;
  void CloseMemory(void* /*data*/) noexcept override {}
  absl::StatusOr<void*> OpenEvent(absl::string_view handle) override;
  void CloseEvent(void* /*event*/) noexcept override {}
  bool HasHappened(void* event) override;
  absl::Status RecordEvent(void* event, kernels::Stream& stream) override;
  absl::Status WriteValue(std::uint32_t* word, std::uint32_t value, kernels::Stream& stream) override;

 private:
  class Queue;
  class Handle;
  class Mark;

  /// One thing that a stream has been given.
  struct Work {
    std::function<bool()> can_begin;                    // asked with the mutex held; empty: always
    std::function<absl::Status(kernels::Stream&)> run;  // without it; empty: nothing
    std::function<void()> end;                          // with it
  };

  void Free(void* data, std::size_t size, kernels::MemoryKind kind) noexcept override;
  void Give(kernels::Stream& stream, Work work);
  void Run();
  /// The stream to go on with; nullptr if none can.
  std::shared_ptr<Queue> NextLocked();

  kernels::Backend& real_;
  const std::unique_ptr<kernels::Stream> real_stream_;  // the thread's

  mutable std::mutex mutex_;  // guards what follows, and the queues and marks
  std::condition_variable changed_;
  std::list<std::shared_ptr<Queue>> queues_;  // those given work last come first
  std::deque<bool> client_events_;
  bool held_ = false;
  bool writes_values_ = true;
  bool running_ = false;
  bool stopping_ = false;
  std::int64_t launches_ = 0;
  std::map<void*, kernels::Buffer> buffers_;  // of the real backend
  std::set<std::thread::id> lookers_;
  std::int64_t launches_by_lookers_ = 0;
  std::int64_t frees_by_lookers_ = 0;
  std::thread thread_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_ASYNCHRONOUS_BACKEND_H_
