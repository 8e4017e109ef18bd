#ifndef GDPCACHE_TESTS_MODEL_WATCHER_H_
#define GDPCACHE_TESTS_MODEL_WATCHER_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "gdpcache/client.h"

namespace gdpcache::test {

/// Positions of snapshots by their keys.
using SnapshotView = std::map<std::string, std::int64_t>;

/// Follows the events of a watch on a thread of its own, as a cache-aware router does. Thread-safe.
class Watcher {
 public:
  /// `present`: what there is at first, where the watch does not tell.
  Watcher(SnapshotWatch watch, SnapshotView present);
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  ~Watcher();

  /// What there is, as far as the events have told.
  SnapshotView view() const;
  /// How the watch has ended, once it has.
  std::optional<absl::Status> end() const;

 private:
  void Follow();

  SnapshotWatch watch_;
  mutable std::mutex mutex_;  // guards what follows
  SnapshotView view_;
  std::optional<absl::Status> end_;
  std::thread thread_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_MODEL_WATCHER_H_
