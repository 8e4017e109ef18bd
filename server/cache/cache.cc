#include "server/cache/cache.h"

namespace gdpcache::cache {

absl::StatusOr<std::shared_ptr<Cache>> Cache::Create(kernels::Backend& backend, CacheSpec spec) {
  absl::StatusOr<StatePool> pool = StatePool::Create(backend, spec.geometry);
  if (!pool.ok()) return pool.status();
  // The constructor is private to make_shared.
  return std::shared_ptr<Cache>(new Cache(std::move(spec), *std::move(pool)));
}

}  // namespace gdpcache::cache
