#ifndef GDPCACHE_TESTS_MODEL_WORLD_H_
#define GDPCACHE_TESTS_MODEL_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gdpcache/client.h"
#include "tests/model/watcher.h"

/// The contract as plain data: what a server holds, as far as its clients can tell. States are bit patterns.
namespace gdpcache::test {

/// One layer of a slot or of a snapshot.
struct LayerState {
  std::string state;      // [H, K, V] in the cache's state dtype
  std::string auxiliary;  // auxiliary_bytes
  std::int64_t position = 0;

  bool operator==(const LayerState&) const = default;
};

/// All layers. Those of a snapshot have one position.
using SlotState = std::vector<LayerState>;

inline constexpr int kFree = -1;  // holder of a slot that nobody holds

struct ModelCache {
  CacheSpec spec;
  std::vector<SlotState> slots;
  std::vector<int> holders;  // by slot: the session's place, or kFree
  std::int64_t sessions = 0;

  std::int64_t free_slots() const {
    std::int64_t free = 0;
    for (const int holder : holders) free += holder == kFree ? 1 : 0;
    return free;
  }
};

/// A snapshot that a session has not completed.
struct PendingParts {
  std::int64_t position = 0;
  std::map<std::int64_t, LayerState> layers;
};

/// Whose snapshots of which fingerprint: the tenant's number comes last.
using SpaceName = std::pair<std::string, int>;

struct ModelSession {
  std::optional<Session> client;
  std::optional<SharedMemory> memory;  // once a prefill's tensors have lain in it
  std::shared_ptr<ModelCache> cache;
  int tenant = 0;
  bool open = true;                             // false: its cache was dropped; calls are NOT_FOUND
  std::map<std::string, PendingParts> pending;  // by key

  SpaceName space() const { return {cache->spec.fingerprint, tenant}; }
};

/// The snapshots of one fingerprint and tenant.
struct ModelSpace {
  std::map<std::string, std::shared_ptr<const SlotState>> snapshots;
  // What has been deleted or evicted since the server was last stopped in an orderly way: after a kill it may be back.
  std::multimap<std::string, std::shared_ptr<const SlotState>> ghosts;
};

struct ModelPin {
  SpaceName space;
  std::string name;  // the server's
  std::vector<std::shared_ptr<const SlotState>> snapshots;
};

struct ModelFile {
  SpaceName space;
  std::string key;
  std::shared_ptr<const SlotState> snapshot;
};

struct ModelWatch {
  SpaceName space;
  std::unique_ptr<Watcher> watcher;
};

struct World {
  std::map<std::string, std::shared_ptr<ModelCache>> caches;
  std::map<int, ModelSession> sessions;  // by place
  std::map<SpaceName, ModelSpace> spaces;
  std::vector<ModelPin> pins;
  std::vector<ModelWatch> watches;
  std::map<std::string, ModelFile> files;  // by path

  bool IsPinned(const SlotState* snapshot) const {
    for (const ModelPin& pin : pins) {
      for (const auto& pinned : pin.snapshots) {
        if (pinned.get() == snapshot) return true;
      }
    }
    return false;
  }
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_MODEL_WORLD_H_
