#include "server/rpc/call_context.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/cache/clock.h"
#include "server/rpc/snapshot_codec.h"

namespace gdpcache::rpc {

namespace {

/// Of a request's bytes.
constexpr std::int64_t kNotCounted = 4'096;

}  // namespace

absl::StatusOr<engine::CallContext> FindCaller(const DataPlane& plane, const grpc::CallbackServerContext& context,
                                               const std::string& session) {
  const absl::StatusOr<const Identity*> caller = plane.access.CallerOf(context);
  if (!caller.ok()) return caller.status();
  auto found = plane.catalog.FindSession(session, (*caller)->tenant);
  if (!found.ok()) return found.status();
  const absl::Duration left = absl::FromChrono(context.deadline()) - absl::Now();
  return engine::CallContext{.session = *std::move(found), .deadline = cache::SteadyNow() + left};
}

absl::StatusOr<cache::SnapshotSpace> FindSpace(const DataPlane& plane, const grpc::CallbackServerContext& context,
                                               const std::string& cache) {
  const absl::StatusOr<const Identity*> caller = plane.access.CallerOf(context);
  if (!caller.ok()) return caller.status();
  return SpaceOf(plane.catalog, cache, (*caller)->tenant);
}

absl::StatusOr<std::shared_ptr<engine::StagingAccount>> ChargeRequest(const engine::Engine& engine, std::int64_t bytes,
                                                                      const std::shared_ptr<cache::TenantUse>& tenant) {
  if (bytes <= kNotCounted) return nullptr;
  return engine.Charge(bytes, cache::BudgetOf(tenant, &cache::TenantUse::staging));
}

absl::StatusOr<std::shared_ptr<engine::StagingAccount>> ChargeCaller(const DataPlane& plane,
                                                                     const grpc::CallbackServerContext& context,
                                                                     std::int64_t bytes) {
  if (bytes <= kNotCounted) return nullptr;
  const absl::StatusOr<const Identity*> caller = plane.access.CallerOf(context);
  if (!caller.ok()) return caller.status();
  return ChargeRequest(plane.engine, bytes, plane.catalog.UseOf((*caller)->tenant));
}

absl::Status ClientGone() { return absl::CancelledError("the client cancelled the call or its deadline passed"); }

}  // namespace gdpcache::rpc
