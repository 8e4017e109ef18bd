#ifndef GDPCACHE_SERVER_ENGINE_SNAPSHOT_OPERATIONS_H_
#define GDPCACHE_SERVER_ENGINE_SNAPSHOT_OPERATIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/call.h"
#include "server/engine/environment.h"

/// Calls between the slots of a session and the snapshots of its space. snapshot.proto documents them; see Engine for
/// the rest.
namespace gdpcache::engine {

inline constexpr std::int64_t kMaxSlotSnapshots = 65'536;  // saves or restores of one call

struct SlotSaveRequest {
  std::int64_t slot = 0;
  std::string key;
};

struct SlotRestoreRequest {
  std::string key;
  std::vector<std::int64_t> slots;
};

/// One outcome per save.
using SavesDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<cache::SnapshotOutcome>>)>;
/// One position per restore.
using RestoresDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<std::int64_t>>)>;

absl::StatusOr<std::shared_ptr<Call>> MakeSaveSnapshots(const Environment& environment, CallContext context,
                                                        std::vector<SlotSaveRequest> saves, SavesDone done);
absl::StatusOr<std::shared_ptr<Call>> MakeRestoreSnapshots(const Environment& environment, CallContext context,
                                                           std::vector<SlotRestoreRequest> restores, RestoresDone done);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_SNAPSHOT_OPERATIONS_H_
