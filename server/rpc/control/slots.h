#ifndef GDPCACHE_SERVER_RPC_CONTROL_SLOTS_H_
#define GDPCACHE_SERVER_RPC_CONTROL_SLOTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gdpcache/v1/session.pb.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"
#include "server/engine/engine.h"

/// The calls about whole slots; session.proto documents them. Those that work on states prepare a call of the engine:
/// the caller starts it, and `done` runs once after that. Responses must stay until then.
namespace gdpcache::rpc {

using CallDone = absl::AnyInvocable<void(absl::Status)>;

/// Counts the bytes that an answer will take at most, until its client has taken it. RESOURCE_EXHAUSTED.
using ChargeAnswer = absl::FunctionRef<absl::Status(std::int64_t bytes)>;

/// For whom a call is made, and how long its answer is of use.
struct CallOrigin {
  std::string tenant;
  absl::Time deadline;
};

/// The session that a call names, and its origin's deadline.
absl::StatusOr<engine::CallContext> ContextOf(cache::Catalog& catalog, const std::string& session,
                                              const CallOrigin& origin);

absl::StatusOr<std::shared_ptr<engine::Call>> AcquireSlots(cache::Catalog& catalog, engine::Engine& engine,
                                                           const CallOrigin& origin,
                                                           const v1::AcquireSlotsRequest& request,
                                                           v1::AcquireSlotsResponse& response, CallDone done);

absl::StatusOr<std::shared_ptr<engine::Call>> ReleaseSlots(cache::Catalog& catalog, engine::Engine& engine,
                                                           const CallOrigin& origin,
                                                           const v1::ReleaseSlotsRequest& request, CallDone done);

absl::StatusOr<std::shared_ptr<engine::Call>> ResetSlots(cache::Catalog& catalog, engine::Engine& engine,
                                                         const CallOrigin& origin, const v1::ResetSlotsRequest& request,
                                                         CallDone done);

absl::StatusOr<std::shared_ptr<engine::Call>> CopySlots(cache::Catalog& catalog, engine::Engine& engine,
                                                        const CallOrigin& origin, const v1::CopySlotsRequest& request,
                                                        CallDone done);

/// Those of the tenant's sessions; of all where `everybody` is true. An error of `charge` comes before any work.
absl::Status ListSlots(const cache::Catalog& catalog, const cache::Clock& clock, const std::string& tenant,
                       bool everybody, const v1::ListSlotsRequest& request, ChargeAnswer charge,
                       v1::ListSlotsResponse& response);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CONTROL_SLOTS_H_
