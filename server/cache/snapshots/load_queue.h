#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_LOAD_QUEUE_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_LOAD_QUEUE_H_

#include <deque>
#include <map>
#include <memory>
#include <string>

namespace gdpcache::cache {

struct SnapshotLoad;

/// Loads that wait for a thread. Tenants take turns: whoever waits for many delays others by no more than one; of one
/// tenant the first comes first. Whoever shares it guards it.
class LoadQueue {
 public:
  void Push(std::shared_ptr<SnapshotLoad> load);
  /// Not when it is empty.
  std::shared_ptr<SnapshotLoad> Pop();
  bool empty() const { return turns_.empty(); }

 private:
  using Waiting = std::map<std::string, std::deque<std::shared_ptr<SnapshotLoad>>>;

  Waiting waiting_;                      // by tenant; none is empty
  std::deque<Waiting::iterator> turns_;  // each once; the next one first
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_LOAD_QUEUE_H_
