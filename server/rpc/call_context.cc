#include "server/rpc/call_context.h"

#include <grpc/support/time.h>

#include "absl/time/time.h"
#include "server/cache/clock.h"
#include "server/rpc/snapshot_codec.h"

namespace gdpcache::rpc {

namespace {

/// Of a request's bytes.
constexpr std::int64_t kNotCounted = 4'096;

}  // namespace

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  // Not what deadline() says: in nanoseconds since 1970, a client that would wait for centuries has waited long ago.
  const gpr_timespec deadline = context.raw_deadline();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  return cache::SteadyNow() + absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

absl::StatusOr<engine::CallContext> FindCaller(const DataPlane& plane, const grpc::CallbackServerContext& context,
                                               const std::string& session) {
  const absl::StatusOr<const Identity*> caller = plane.access.CallerOf(context);
  if (!caller.ok()) return caller.status();
  auto found = plane.catalog.FindSession(session, (*caller)->tenant);
  if (!found.ok()) return found.status();
  return engine::CallContext{.session = *std::move(found), .deadline = DeadlineOf(context)};
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
