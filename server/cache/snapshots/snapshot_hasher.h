#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_HASHER_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_HASHER_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"

struct XXH3_state_s;

namespace gdpcache::cache {

/// XXH3-128 in its canonical byte order: what `xxhsum -H2` prints.
using SnapshotChecksum = std::array<std::uint8_t, 16>;

/// XXH3-128 of bytes that come in pieces; how they are cut makes no difference.
class SnapshotHasher {
 public:
  SnapshotHasher();

  void Add(absl::Span<const std::byte> bytes);

  /// Of everything added so far.
  SnapshotChecksum checksum() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_HASHER_H_
