#ifndef GDPCACHE_TESTS_SUPPORT_NOTING_SHARING_H_
#define GDPCACHE_TESTS_SUPPORT_NOTING_SHARING_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "kernels/memory_sharing.h"

namespace gdpcache::test {

/// Notes what happens to memory and events, and which threads close them.
class NotingSharing final : public kernels::MemorySharing {
 public:
  std::string device_uuid() const override { return "GPU-0"; }
  absl::Status Pin(void* /*data*/, std::size_t /*size*/) override {
    if (refuse) return absl::ResourceExhaustedError("no");
    ++open;
    return absl::OkStatus();
  }
  void Unpin(void* /*data*/) noexcept override { Close(); }
  absl::StatusOr<DeviceMemory> OpenMemory(absl::string_view /*handle*/) override {
    ++open;
    return DeviceMemory{memory, sizeof(memory)};
  }
  void CloseMemory(void* data) noexcept override {
    EXPECT_EQ(data, memory);
    Close();
  }
  absl::StatusOr<void*> OpenEvent(absl::string_view /*handle*/) override {
    ++open;
    return memory;
  }
  void CloseEvent(void* /*event*/) noexcept override { Close(); }
  bool HasHappened(void* /*event*/) override { return true; }
  absl::Status RecordEvent(void* /*event*/, kernels::Stream& /*stream*/) override { return absl::OkStatus(); }
  absl::Status WriteValue(std::uint32_t* /*word*/, std::uint32_t /*value*/, kernels::Stream& /*stream*/) override {
    return absl::UnimplementedError("no");
  }

  std::set<std::thread::id> closers() const {
    const std::lock_guard lock(mutex_);
    return closers_;
  }

  alignas(64) char memory[256] = {};  // whatever the handle
  std::atomic<int> open = 0;
  bool refuse = false;

 private:
  void Close() {
    {
      const std::lock_guard lock(mutex_);
      closers_.insert(std::this_thread::get_id());
    }
    --open;
  }

  mutable std::mutex mutex_;
  std::set<std::thread::id> closers_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_NOTING_SHARING_H_
