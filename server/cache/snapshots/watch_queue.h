#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_WATCH_QUEUE_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_WATCH_QUEUE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/cache/snapshots/snapshot_index.h"
#include "server/cache/snapshots/snapshot_store.h"

namespace gdpcache::cache {

/// What one watcher has yet to be told. Used with the store's lock held, except for Wake.
class WatchQueue {
 public:
  WatchQueue(bool existing, std::int64_t max_events, absl::AnyInvocable<void()> wake)
      : max_events_(max_events), wake_(std::move(wake)), existing_left_(existing), waiting_(!existing) {}

  /// Whether the watcher, who has found nothing before, must be woken.
  bool Add(const SnapshotEvent& event);

  /// Some of what there is, and then what has happened. What exists is looked up only now, so the queue holds no more
  /// than its limit however many snapshots there are, and whoever applies the events in order ends up with the truth.
  absl::StatusOr<std::vector<SnapshotEvent>> Take(const SpaceIndex& space);

  void Wake() { wake_(); }

 private:
  const std::int64_t max_events_;
  absl::AnyInvocable<void()> wake_;
  std::deque<SnapshotEvent> events_;
  bool existing_left_;
  std::string told_;  // the last existing one
  bool waiting_;
  bool overflowed_ = false;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_WATCH_QUEUE_H_
