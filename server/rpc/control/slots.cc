#include "server/rpc/control/slots.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace gdpcache::rpc {
namespace {

// A listed slot of a client with the longest name, as an object and on its way.
constexpr std::int64_t kListedSlotBytes = 384;

}  // namespace

absl::StatusOr<engine::CallContext> ContextOf(cache::Catalog& catalog, const std::string& session,
                                              const CallOrigin& origin) {
  absl::StatusOr<std::shared_ptr<cache::Session>> found = catalog.FindSession(session, origin.tenant);
  if (!found.ok()) return found.status();
  return engine::CallContext{*std::move(found), origin.deadline};
}

absl::StatusOr<std::shared_ptr<engine::Call>> AcquireSlots(cache::Catalog& catalog, engine::Engine& engine,
                                                           const CallOrigin& origin,
                                                           const v1::AcquireSlotsRequest& request,
                                                           v1::AcquireSlotsResponse& response, CallDone done) {
  absl::StatusOr<engine::CallContext> context = ContextOf(catalog, request.session(), origin);
  if (!context.ok()) return context.status();
  return engine.AcquireSlots(
      *std::move(context), request.count(),
      [&response, done = std::move(done)](absl::StatusOr<std::vector<std::int64_t>> slots) mutable {
        if (slots.ok()) response.mutable_slots()->Add(slots->begin(), slots->end());
        done(slots.status());
      });
}

absl::StatusOr<std::shared_ptr<engine::Call>> ReleaseSlots(cache::Catalog& catalog, engine::Engine& engine,
                                                           const CallOrigin& origin,
                                                           const v1::ReleaseSlotsRequest& request, CallDone done) {
  absl::StatusOr<engine::CallContext> context = ContextOf(catalog, request.session(), origin);
  if (!context.ok()) return context.status();
  return engine.ReleaseSlots(*std::move(context), {request.slots().begin(), request.slots().end()}, std::move(done));
}

absl::StatusOr<std::shared_ptr<engine::Call>> ResetSlots(cache::Catalog& catalog, engine::Engine& engine,
                                                         const CallOrigin& origin, const v1::ResetSlotsRequest& request,
                                                         CallDone done) {
  absl::StatusOr<engine::CallContext> context = ContextOf(catalog, request.session(), origin);
  if (!context.ok()) return context.status();
  return engine.ResetSlots(*std::move(context), {request.slots().begin(), request.slots().end()}, std::move(done));
}

absl::StatusOr<std::shared_ptr<engine::Call>> CopySlots(cache::Catalog& catalog, engine::Engine& engine,
                                                        const CallOrigin& origin, const v1::CopySlotsRequest& request,
                                                        CallDone done) {
  absl::StatusOr<engine::CallContext> context = ContextOf(catalog, request.session(), origin);
  if (!context.ok()) return context.status();
  std::vector<engine::SlotCopyRequest> copies;
  copies.reserve(request.copies_size());
  for (const v1::SlotCopy& copy : request.copies())
    copies.push_back({copy.source(), {copy.destinations().begin(), copy.destinations().end()}});
  return engine.CopySlots(*std::move(context), std::move(copies), std::move(done));
}

absl::Status ListSlots(const cache::Catalog& catalog, const cache::Clock& clock, const std::string& tenant,
                       bool everybody, const v1::ListSlotsRequest& request, ChargeAnswer charge,
                       v1::ListSlotsResponse& response) {
  const absl::StatusOr<std::shared_ptr<cache::Cache>> cache = catalog.FindCache(request.cache());
  if (!cache.ok()) return cache.status();
  const cache::SlotTable& slots = (*cache)->slots();
  if (absl::Status status = charge(slots.counts().held * kListedSlotBytes); !status.ok()) return status;
  const absl::Time now = clock.Now();
  absl::flat_hash_map<cache::SessionKey, std::optional<cache::Catalog::Holder>> holders;
  for (const cache::SlotTable::Held& held : slots.ListHeld()) {
    const auto [known, is_new] = holders.try_emplace(held.session);
    std::optional<cache::Catalog::Holder>& holder = known->second;
    if (is_new) holder = catalog.FindHolder(held.session);
    // One whose session has just ended is on its way to the free ones.
    if (!holder.has_value() || (!everybody && holder->tenant != tenant)) continue;
    v1::SlotInfo& slot = *response.add_slots();
    slot.set_slot(held.slot);
    slot.set_client_name(holder->client_name);
    slot.set_min_position(held.min_position);
    slot.set_max_position(held.max_position);
    slot.set_session_expires_in_ms(std::max<std::int64_t>(0, absl::ToInt64Milliseconds(holder->expires_at - now)));
  }
  response.set_free_slots(slots.free_count());
  return absl::OkStatus();
}

}  // namespace gdpcache::rpc
