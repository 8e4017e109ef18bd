#ifndef GDPCACHE_SERVER_ENGINE_SLOT_OPERATIONS_H_
#define GDPCACHE_SERVER_ENGINE_SLOT_OPERATIONS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/engine/call.h"
#include "server/engine/environment.h"

/// Calls on whole slots, all their layers and auxiliary bytes. session.proto documents them; see Engine for the rest.
namespace gdpcache::engine {

using SlotsDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<std::int64_t>>)>;
using Done = absl::AnyInvocable<void(absl::Status)>;

struct SlotCopyRequest {
  std::int64_t source = 0;
  std::vector<std::int64_t> destinations;
};

/// One slot that takes over the content another had before the call.
struct SlotMove {
  std::int64_t destination = 0;
  std::int64_t source = 0;

  bool operator==(const SlotMove&) const = default;
};

/// What `copies`, done one after the other, amount to: which slot's original content each destination ends with; those
/// that keep their own are left out. Destinations are distinct.
std::vector<SlotMove> ResolveCopies(absl::Span<const SlotCopyRequest> copies);

absl::StatusOr<std::shared_ptr<Call>> MakeAcquireSlots(const Environment& environment, CallContext context,
                                                       std::int64_t count, SlotsDone done);
absl::StatusOr<std::shared_ptr<Call>> MakeReleaseSlots(const Environment& environment, CallContext context,
                                                       std::vector<std::int64_t> slots, Done done);
absl::StatusOr<std::shared_ptr<Call>> MakeResetSlots(const Environment& environment, CallContext context,
                                                     std::vector<std::int64_t> slots, Done done);
absl::StatusOr<std::shared_ptr<Call>> MakeCopySlots(const Environment& environment, CallContext context,
                                                    std::vector<SlotCopyRequest> copies, Done done);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_SLOT_OPERATIONS_H_
