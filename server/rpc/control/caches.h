#ifndef GDPCACHE_SERVER_RPC_CONTROL_CACHES_H_
#define GDPCACHE_SERVER_RPC_CONTROL_CACHES_H_

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gdpcache/v1/cache.pb.h"
#include "server/cache/catalog.h"

/// The calls about caches; cache.proto documents them.
namespace gdpcache::rpc {

/// What a CreateCache asks for. INVALID_ARGUMENT for a dtype no state can have; the rest is the catalog's to check.
absl::StatusOr<cache::CacheSpec> DecodeCacheSpec(const v1::CreateCacheRequest& request);

v1::Cache EncodeCache(const cache::Cache& cache, std::int64_t sessions);

absl::Status CreateCache(cache::Catalog& catalog, const std::string& tenant, const v1::CreateCacheRequest& request,
                         v1::CreateCacheResponse& response);

/// `done` runs once, when the cache's memory is free or at once with an error.
void DeleteCache(cache::Catalog& catalog, const v1::DeleteCacheRequest& request,
                 absl::AnyInvocable<void(absl::Status)> done);

void ListCaches(const cache::Catalog& catalog, v1::ListCachesResponse& response);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CONTROL_CACHES_H_
