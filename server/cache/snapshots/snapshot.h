#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "server/cache/geometry.h"

namespace gdpcache::cache {

inline constexpr std::size_t kMinSnapshotKeyBytes = 16;
inline constexpr std::size_t kMaxSnapshotKeyBytes = 64;

/// Version of what a state's numbers mean: [H, K, V] row-major per layer, decays applied as recurrence.h says. States
/// of another version are not interchangeable.
inline constexpr std::int64_t kStateLayoutVersion = 1;

/// Within one space a key names at most one snapshot, and any of them can be restored into any slot of a cache of that
/// space. snapshot.proto says what belongs to it. Hashable.
struct SnapshotSpace {
  std::string tenant;
  std::string fingerprint;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t num_householder = 1;
  kernels::DataType state_dtype = kernels::DataType::kFloat32;
  std::int64_t auxiliary_bytes = 0;  // per layer

  static SnapshotSpace Of(std::string tenant, std::string fingerprint, const Geometry& geometry) {
    return {std::move(tenant),        std::move(fingerprint), geometry.layers,
            geometry.heads,           geometry.key_dim,       geometry.value_dim,
            geometry.num_householder, geometry.state_dtype,   geometry.auxiliary_bytes};
  }
  /// Of a cache of this space with one slot.
  Geometry geometry() const {
    return {.layers = layers,
            .slots = 1,
            .heads = heads,
            .key_dim = key_dim,
            .value_dim = value_dim,
            .num_householder = num_householder,
            .state_dtype = state_dtype,
            .auxiliary_bytes = auxiliary_bytes};
  }

  bool operator==(const SnapshotSpace&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const SnapshotSpace& s) {
    return H::combine(std::move(hash), s.tenant, s.fingerprint, s.layers, s.heads, s.key_dim, s.value_dim,
                      s.num_householder, s.state_dtype, s.auxiliary_bytes);
  }

  /// Of one layer's [H, K, V] state.
  std::int64_t state_bytes() const { return heads * key_dim * value_dim * kernels::ByteSize(state_dtype); }
  /// Of one layer's state and auxiliary bytes.
  std::int64_t part_bytes() const { return state_bytes() + auxiliary_bytes; }
  /// Of a whole snapshot.
  std::int64_t snapshot_bytes() const { return layers * part_bytes(); }
};

/// What a tier has to know of a snapshot besides its content.
struct SnapshotRecord {
  SnapshotSpace space;
  std::string key;
  std::int64_t position = 0;  // tokens
};

/// Where one layer's part lies: its state, and its auxiliary bytes (size 0 where the space has none).
struct SnapshotPart {
  kernels::ByteRange state;
  kernels::ByteRange auxiliary;
};

/// 16 to 64 bytes; INVALID_ARGUMENT names `field`.
absl::Status CheckSnapshotKey(absl::string_view field, absl::string_view key);

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_H_
