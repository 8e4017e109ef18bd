#include "server/cache/snapshots/load_queue.h"

#include <utility>

#include "server/cache/snapshots/store_state.h"

namespace gdpcache::cache {

void LoadQueue::Push(std::shared_ptr<SnapshotLoad> load) {
  const auto [tenant, is_new] = waiting_.try_emplace(load->entry->space->identity.tenant);
  tenant->second.push_back(std::move(load));
  if (is_new) turns_.push_back(tenant);
}

std::shared_ptr<SnapshotLoad> LoadQueue::Pop() {
  const Waiting::iterator tenant = turns_.front();
  turns_.pop_front();
  std::shared_ptr<SnapshotLoad> load = std::move(tenant->second.front());
  tenant->second.pop_front();
  if (tenant->second.empty()) {
    waiting_.erase(tenant);
  } else {
    turns_.push_back(tenant);
  }
  return load;
}

}  // namespace gdpcache::cache
