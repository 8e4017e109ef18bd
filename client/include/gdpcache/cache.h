#ifndef GDPCACHE_CACHE_H_
#define GDPCACHE_CACHE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gdpcache/snapshot.h"
#include "gdpcache/tensor.h"

/// What a server says about itself and its caches.
namespace gdpcache {

/// The fixed shape of one model's recurrent state. Limits and defaults: gdpcache/v1/cache.proto.
struct CacheGeometry {
  std::int64_t layers = 1;
  std::int64_t slots = 0;
  std::int64_t heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t num_householder = 1;
  DataType state_dtype = DataType::kFloat32;
  std::int64_t auxiliary_bytes = 0;
};

/// A cache to create.
struct CacheSpec {
  std::string name;
  CacheGeometry geometry;
  std::string fingerprint = {};  // model, revision and whatever else makes states incompatible
  bool ephemeral = false;        // goes with its last session
};

/// A cache that exists. gdpcache/v1/cache.proto explains every field, of the structures below too.
struct CacheInfo {
  std::string name;
  CacheGeometry geometry;
  std::string fingerprint;
  bool ephemeral = false;
  std::int64_t free_slots = 0;
  std::int64_t held_slots = 0;
  std::int64_t sessions = 0;
  std::int64_t memory_bytes = 0;
};

/// What Client::CreateCache came to.
struct CreatedCache {
  CacheInfo cache;
  bool created = false;  // false: it existed with the same geometry and fingerprint and is shared
};

/// What a server allows.
struct ServerLimits {
  std::int64_t max_message_bytes = 0;
  std::int64_t state_memory_bytes = 0;
  std::int64_t staging_bytes = 0;
  std::int64_t max_caches = 0;
  std::int64_t max_sessions = 0;
  std::int64_t max_sequences_per_call = 0;
  absl::Duration max_session_ttl;
  std::int64_t shared_memory_bytes = 0;
  std::int64_t max_regions = 0;
  std::int64_t max_calls = 0;
  absl::Duration max_queue_wait;
  std::int64_t max_connection_calls = 0;
  std::int64_t max_tenant_sessions = 0;  // 0: no limit of its own
  std::int64_t max_tenant_slots = 0;     // the same
};

/// What a server was made of, for people.
struct BuildInfo {
  std::string commit;
  std::string compiler;
  std::vector<std::string> libraries;
};

/// A place where the server keeps snapshots.
struct SnapshotTierInfo {
  SnapshotTier tier = SnapshotTier::kUnknown;
  std::int64_t capacity_bytes = 0;
  std::int64_t used_bytes = 0;
  std::int64_t snapshots = 0;
};

/// A server, its memory and its caches.
struct ServerInfo {
  std::string version;
  std::string backend;  // "cpu" or "cuda"
  std::string device;
  std::int64_t device_memory_bytes = 0;
  std::int64_t state_memory_used_bytes = 0;
  std::int64_t staging_used_bytes = 0;
  ServerLimits limits;
  std::vector<std::string> addresses;
  std::vector<std::string> transports;
  std::vector<CacheInfo> caches;
  std::vector<SnapshotTierInfo> snapshot_tiers;  // fastest first
  absl::Duration uptime;
  BuildInfo build;
  absl::Duration expected_wait;  // of a call that came now, as far as can be told
};

/// A slot that some session holds.
struct SlotInfo {
  std::int64_t slot = 0;
  std::string client_name;
  std::int64_t min_position = 0;  // tokens absorbed by the layer furthest behind
  std::int64_t max_position = 0;  // and furthest ahead
  absl::Duration session_expires_in;
};

/// The slots of one cache.
struct SlotList {
  std::vector<SlotInfo> slots;  // held ones, ascending
  std::int64_t free_slots = 0;
};

}  // namespace gdpcache

#endif  // GDPCACHE_CACHE_H_
