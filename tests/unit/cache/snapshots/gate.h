#ifndef GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_GATE_H_
#define GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_GATE_H_

#include <functional>
#include <future>

namespace gdpcache::cache {

/// Holds up those who pass until it is opened.
class Gate {
 public:
  std::function<void()> Pass() {
    return [this] {
      reached_.set_value();
      opened_.wait();
    };
  }
  /// Somebody waits at it. Once.
  void WaitUntilReached() { reached_.get_future().wait(); }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> reached_;
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_TESTS_UNIT_CACHE_SNAPSHOTS_GATE_H_
