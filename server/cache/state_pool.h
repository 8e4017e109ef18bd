#ifndef GDPCACHE_SERVER_CACHE_STATE_POOL_H_
#define GDPCACHE_SERVER_CACHE_STATE_POOL_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/cache/geometry.h"

namespace gdpcache::cache {

/// The memory of one cache: [layers, slots, H, K, V] states and [layers, slots, auxiliary_bytes] auxiliary bytes, both
/// device memory taken when it is created. Knows addresses only: who may touch them when is the sequencer's business.
class StatePool {
 public:
  /// RESOURCE_EXHAUSTED when the backend has not enough memory; nothing is kept then.
  static absl::StatusOr<StatePool> Create(kernels::Backend& backend, const Geometry& geometry);

  /// The [H, K, V] state of a slot. `layer` and `slot` must be in range.
  kernels::StateView State(std::int64_t layer, std::int64_t slot) const;

  /// Its auxiliary_bytes bytes; a range of size 0 where the geometry has none.
  kernels::ByteRange Auxiliary(std::int64_t layer, std::int64_t slot) const;

 private:
  StatePool(const Geometry& geometry, kernels::Buffer states, kernels::Buffer auxiliary)
      : geometry_(geometry), states_(std::move(states)), auxiliary_(std::move(auxiliary)) {}

  Geometry geometry_;
  kernels::Buffer states_;
  kernels::Buffer auxiliary_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_STATE_POOL_H_
