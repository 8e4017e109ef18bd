#include "server/cache/state_pool.h"

#include "absl/time/time.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

// Device memory comes back when somebody deletes a cache; there is no telling when.
constexpr absl::Duration kRetryAfter = absl::Seconds(5);

absl::StatusOr<kernels::Buffer> Allocate(kernels::Backend& backend, std::int64_t bytes) {
  if (bytes == 0) return kernels::Buffer();
  absl::StatusOr<kernels::Buffer> buffer =
      backend.Allocate(static_cast<std::size_t>(bytes), kernels::MemoryKind::kDevice);
  if (absl::IsResourceExhausted(buffer.status())) return Exhausted(buffer.status().message(), kRetryAfter);
  return buffer;
}

}  // namespace

absl::StatusOr<StatePool> StatePool::Create(kernels::Backend& backend, const Geometry& geometry) {
  const std::int64_t places = geometry.layers * geometry.slots;
  absl::StatusOr<kernels::Buffer> states = Allocate(backend, places * geometry.state_bytes());
  if (!states.ok()) return states.status();
  absl::StatusOr<kernels::Buffer> auxiliary = Allocate(backend, places * geometry.auxiliary_bytes);
  if (!auxiliary.ok()) return auxiliary.status();
  return StatePool(geometry, *std::move(states), *std::move(auxiliary));
}

kernels::StateView StatePool::State(std::int64_t layer, std::int64_t slot) const {
  const std::int64_t place = layer * geometry_.slots + slot;
  return {states_.bytes() + place * geometry_.state_bytes(), geometry_.state_dtype,
          geometry_.key_dim * geometry_.value_dim};
}

kernels::ByteRange StatePool::Auxiliary(std::int64_t layer, std::int64_t slot) const {
  if (geometry_.auxiliary_bytes == 0) return {};
  const std::int64_t place = layer * geometry_.slots + slot;
  return {auxiliary_.bytes() + place * geometry_.auxiliary_bytes, static_cast<std::size_t>(geometry_.auxiliary_bytes)};
}

}  // namespace gdpcache::cache
