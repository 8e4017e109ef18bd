#include "server/engine/slot_memory.h"

#include <numeric>

namespace gdpcache::engine {

std::vector<std::int64_t> AllLayers(const cache::Geometry& geometry) {
  std::vector<std::int64_t> layers(geometry.layers);
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

std::int64_t SlotBytes(const cache::Geometry& geometry) {
  return geometry.layers * (geometry.state_bytes() + geometry.auxiliary_bytes);
}

std::vector<kernels::ByteRange> SlotRanges(const cache::Cache& cache, std::int64_t slot) {
  const cache::Geometry& geometry = cache.geometry();
  std::vector<kernels::ByteRange> ranges;
  ranges.reserve(2 * geometry.layers);
  for (std::int64_t layer = 0; layer < geometry.layers; ++layer) {
    ranges.push_back({cache.pool().State(layer, slot).data, static_cast<std::size_t>(geometry.state_bytes())});
    if (geometry.auxiliary_bytes > 0) ranges.push_back(cache.pool().Auxiliary(layer, slot));
  }
  return ranges;
}

std::vector<kernels::ByteRange> SnapshotRanges(absl::Span<const cache::SnapshotPart> parts) {
  std::vector<kernels::ByteRange> ranges;
  ranges.reserve(2 * parts.size());
  for (const cache::SnapshotPart& part : parts) {
    ranges.push_back(part.state);
    if (part.auxiliary.size > 0) ranges.push_back(part.auxiliary);
  }
  return ranges;
}

void AppendCopies(absl::Span<const kernels::ByteRange> to, absl::Span<const kernels::ByteRange> from,
                  std::vector<kernels::ByteCopy>& copies) {
  for (std::size_t i = 0; i < to.size(); ++i) copies.push_back({to[i].data, from[i].data, to[i].size});
}

cache::SnapshotSpace SpaceOf(const cache::Session& session) {
  const cache::Cache& cache = *session.cache();
  return cache::SnapshotSpace::Of(session.tenant(), cache.spec().fingerprint, cache.geometry());
}

}  // namespace gdpcache::engine
