#include "server/cache/snapshots/watch_queue.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

constexpr std::int64_t kExistingAtOnce = 1'024;
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

}  // namespace

bool WatchQueue::Add(const SnapshotEvent& event) {
  if (overflowed_) return false;
  if (static_cast<std::int64_t>(events_.size()) >= max_events_) {
    overflowed_ = true;
    events_.clear();
  } else {
    events_.push_back(event);
  }
  return std::exchange(waiting_, false);
}

absl::StatusOr<std::vector<SnapshotEvent>> WatchQueue::Take(const SpaceIndex& space) {
  if (overflowed_) {
    return Exhausted(absl::StrCat("more than ", max_events_, " events have waited for this watcher"), kRetryAfter);
  }
  std::vector<SnapshotEvent> events;
  if (existing_left_) {
    auto next = space.ordered.upper_bound(absl::string_view(told_));
    for (std::int64_t count = 0; count < kExistingAtOnce && next != space.ordered.end(); ++count, ++next) {
      events.push_back({SnapshotEvent::Type::kStored, (*next)->key, (*next)->position});
    }
    existing_left_ = next != space.ordered.end();
    if (existing_left_) {
      told_ = events.back().key;
    } else {
      events.push_back({SnapshotEvent::Type::kSynced, "", 0});
    }
  }
  events.insert(events.end(), std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
  waiting_ = !existing_left_;
  return events;
}

}  // namespace gdpcache::cache
