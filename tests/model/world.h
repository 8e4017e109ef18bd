#ifndef GDPCACHE_TESTS_MODEL_WORLD_H_
#define GDPCACHE_TESTS_MODEL_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gdpcache/client.h"

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

struct ModelSession {
  std::optional<Session> client;
  std::shared_ptr<ModelCache> cache;
  bool open = true;                             // false: its cache was dropped; calls are NOT_FOUND
  std::map<std::string, PendingParts> pending;  // by key
};

/// The snapshots of one fingerprint.
struct ModelSpace {
  std::map<std::string, std::shared_ptr<const SlotState>> snapshots;
  // What has been deleted or evicted since the server was last stopped in an orderly way: after a kill it may be back.
  std::multimap<std::string, std::shared_ptr<const SlotState>> ghosts;
};

struct ModelPin {
  std::string fingerprint;
  std::string name;  // the server's
  std::vector<std::shared_ptr<const SlotState>> snapshots;
};

struct ModelFile {
  std::string fingerprint;
  std::string key;
  std::shared_ptr<const SlotState> snapshot;
};

struct World {
  std::map<std::string, std::shared_ptr<ModelCache>> caches;
  std::map<int, ModelSession> sessions;  // by place
  std::map<std::string, ModelSpace> spaces;
  std::vector<ModelPin> pins;
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
