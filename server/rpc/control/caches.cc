#include "server/rpc/control/caches.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"
#include "server/rpc/prefill_codec.h"

namespace gdpcache::rpc {
namespace {

absl::StatusOr<kernels::DataType> DecodeStateType(v1::DataType dtype) {
  switch (dtype) {
    case v1::DATA_TYPE_UNSPECIFIED:
    case v1::DATA_TYPE_FLOAT32:
      return kernels::DataType::kFloat32;
    case v1::DATA_TYPE_BFLOAT16:
      return kernels::DataType::kBFloat16;
    case v1::DATA_TYPE_FLOAT16:
      return kernels::DataType::kFloat16;
    default:
      return cache::InvalidField(
          "geometry.state_dtype",
          absl::StrCat("is ", static_cast<int>(dtype), "; it must be FLOAT32 (1), BFLOAT16 (2) or FLOAT16 (3)"));
  }
}

}  // namespace

absl::StatusOr<cache::CacheSpec> DecodeCacheSpec(const v1::CreateCacheRequest& request) {
  const v1::CacheGeometry& geometry = request.geometry();
  const absl::StatusOr<kernels::DataType> state_dtype = DecodeStateType(geometry.state_dtype());
  if (!state_dtype.ok()) return state_dtype.status();
  cache::CacheSpec spec;
  spec.name = request.name();
  spec.geometry.layers = geometry.layers();
  spec.geometry.slots = geometry.slots();
  spec.geometry.heads = geometry.heads();
  spec.geometry.key_dim = geometry.key_dim();
  spec.geometry.value_dim = geometry.value_dim();
  spec.geometry.num_householder = geometry.num_householder() == 0 ? 1 : geometry.num_householder();
  spec.geometry.state_dtype = *state_dtype;
  spec.geometry.auxiliary_bytes = geometry.auxiliary_bytes();
  spec.fingerprint = request.fingerprint();
  spec.ephemeral = request.ephemeral();
  return spec;
}

v1::Cache EncodeCache(const cache::Cache& cache, std::int64_t sessions) {
  v1::Cache message;
  message.set_name(cache.spec().name);
  v1::CacheGeometry& geometry = *message.mutable_geometry();
  geometry.set_layers(cache.geometry().layers);
  geometry.set_slots(cache.geometry().slots);
  geometry.set_heads(cache.geometry().heads);
  geometry.set_key_dim(cache.geometry().key_dim);
  geometry.set_value_dim(cache.geometry().value_dim);
  geometry.set_num_householder(cache.geometry().num_householder);
  geometry.set_state_dtype(EncodeDataType(engine::ElementTypeOf(cache.geometry().state_dtype)));
  geometry.set_auxiliary_bytes(cache.geometry().auxiliary_bytes);
  message.set_fingerprint(cache.spec().fingerprint);
  message.set_ephemeral(cache.spec().ephemeral);
  const cache::SlotTable::Counts counts = cache.slots().counts();
  message.set_free_slots(counts.free);
  message.set_held_slots(counts.held);
  message.set_sessions(sessions);
  message.set_memory_bytes(cache.geometry().total_bytes());
  return message;
}

absl::Status CreateCache(cache::Catalog& catalog, const std::string& tenant, const v1::CreateCacheRequest& request,
                         v1::CreateCacheResponse& response) {
  const absl::StatusOr<cache::CacheSpec> spec = DecodeCacheSpec(request);
  if (!spec.ok()) return spec.status();
  const absl::StatusOr<cache::Catalog::Created> created = catalog.CreateCache(*spec, tenant);
  if (!created.ok()) return created.status();
  *response.mutable_cache() = EncodeCache(*created->cache, created->sessions);
  response.set_created(created->created);
  return absl::OkStatus();
}

void DeleteCache(cache::Catalog& catalog, const v1::DeleteCacheRequest& request,
                 absl::AnyInvocable<void(absl::Status)> done) {
  // Only one of the two ways runs it.
  const auto shared_done = std::make_shared<absl::AnyInvocable<void(absl::Status)>>(std::move(done));
  const absl::Status status =
      catalog.DeleteCache(request.name(), request.force(), [shared_done] { (*shared_done)(absl::OkStatus()); });
  if (!status.ok()) (*shared_done)(status);
}

void ListCaches(const cache::Catalog& catalog, v1::ListCachesResponse& response) {
  for (const cache::Catalog::CacheSummary& summary : catalog.ListCaches()) {
    *response.add_caches() = EncodeCache(*summary.cache, summary.sessions);
  }
}

}  // namespace gdpcache::rpc
