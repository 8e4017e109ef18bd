#ifndef GDPCACHE_SERVER_CACHE_GEOMETRY_H_
#define GDPCACHE_SERVER_CACHE_GEOMETRY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/data_type.h"
#include "kernels/recurrence.h"

namespace gdpcache::cache {

/// The fixed shape of one cache. Limits stand in cache.proto; Validate enforces them.
struct Geometry {
  std::int64_t layers = 0;
  std::int64_t slots = 0;
  std::int64_t heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t num_householder = 1;
  kernels::DataType state_dtype = kernels::DataType::kFloat32;
  std::int64_t auxiliary_bytes = 0;

  bool operator==(const Geometry&) const = default;

  /// Every field in its range and TotalBytes() below 2^62; INVALID_ARGUMENT names the field ("geometry.heads").
  absl::Status Validate() const;

  /// Elements and bytes of one layer's [H, K, V] state of one slot.
  std::int64_t state_elements() const { return heads * key_dim * value_dim; }
  std::int64_t state_bytes() const { return state_elements() * kernels::ByteSize(state_dtype); }

  /// Memory of the whole cache. Only for a valid geometry.
  std::int64_t total_bytes() const { return layers * slots * (state_bytes() + auxiliary_bytes); }

  /// What the cache counts against the server's state memory: total_bytes(), and the host memory that its bookkeeping
  /// may need as far as that exceeds a quarter of it. Only caches of very small states (some 400 bytes) pay anything;
  /// without it a huge number of them would take host memory that nobody counts. Only for a valid geometry.
  std::int64_t memory_charge() const;
};

/// "heads is 8, not 16; layers is ..." — how `wanted` differs from `existing`; empty when equal.
std::string DescribeDifference(const Geometry& existing, const Geometry& wanted);

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_GEOMETRY_H_
