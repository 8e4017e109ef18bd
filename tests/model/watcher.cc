#include "tests/model/watcher.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace gdpcache::test {

Watcher::Watcher(SnapshotWatch watch, SnapshotView present)
    : watch_(std::move(watch)), view_(std::move(present)), thread_([this] { Follow(); }) {}

Watcher::~Watcher() {
  watch_.Cancel();
  thread_.join();
}

SnapshotView Watcher::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

std::optional<absl::Status> Watcher::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

void Watcher::Follow() {
  while (true) {
    const absl::StatusOr<std::vector<SnapshotEvent>> events = watch_.Next();
    const std::lock_guard lock(mutex_);
    if (!events.ok()) {
      end_ = events.status();
      return;
    }
    for (const SnapshotEvent& event : *events) {
      if (event.type == SnapshotEvent::Type::kStored) {
        view_[event.key] = event.position;
      } else if (event.type != SnapshotEvent::Type::kSynced) {
        view_.erase(event.key);
      }
    }
  }
}

}  // namespace gdpcache::test
