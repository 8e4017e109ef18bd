#ifndef GDPCACHE_SERVER_ENGINE_SLOT_MEMORY_H_
#define GDPCACHE_SERVER_ENGINE_SLOT_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/cache/cache.h"
#include "server/cache/session.h"
#include "server/cache/snapshots/snapshot.h"

/// The memory of whole slots and whole snapshots, and copies between them.
namespace gdpcache::engine {

/// Where a slot may stand: no number of tokens that can be sent counts on from there beyond 2^63.
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 62;

std::vector<std::int64_t> AllLayers(const cache::Geometry& geometry);

/// Of one slot in all layers.
std::int64_t SlotBytes(const cache::Geometry& geometry);

/// A slot's memory: per layer its state and, where the cache keeps any, its auxiliary bytes.
std::vector<kernels::ByteRange> SlotRanges(const cache::Cache& cache, std::int64_t slot);

/// A snapshot's memory, in the same order.
std::vector<kernels::ByteRange> SnapshotRanges(absl::Span<const cache::SnapshotPart> parts);

/// Appends a copy of each range of `from` to its counterpart in `to`, which is as large.
void AppendCopies(absl::Span<const kernels::ByteRange> to, absl::Span<const kernels::ByteRange> from,
                  std::vector<kernels::ByteCopy>& copies);

/// Where the snapshots are that the session's slots may be saved to and restored from.
cache::SnapshotSpace SpaceOf(const cache::Session& session);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_SLOT_MEMORY_H_
