#ifndef GDPCACHE_SERVER_RPC_LINK_H_
#define GDPCACHE_SERVER_RPC_LINK_H_

#include <mutex>

namespace gdpcache::rpc {

/// A way to an object for callbacks that may come when it is gone. Thread-safe.
template <typename T>
class Link {
 public:
  explicit Link(T* target) : target_(target) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Nobody gets to the object any more; waits for who is there. Not from within Use.
  void Cut() {
    const std::lock_guard lock(mutex_);
    target_ = nullptr;
  }

  /// Calls `use` with the object unless it is gone.
  template <typename Function>
  void Use(Function use) {
    const std::lock_guard lock(mutex_);
    if (target_ != nullptr) use(*target_);
  }

 private:
  std::mutex mutex_;
  T* target_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_LINK_H_
