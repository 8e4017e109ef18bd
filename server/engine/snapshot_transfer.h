#ifndef GDPCACHE_SERVER_ENGINE_SNAPSHOT_TRANSFER_H_
#define GDPCACHE_SERVER_ENGINE_SNAPSHOT_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/engine/call.h"
#include "server/engine/environment.h"
#include "server/engine/staging_pool.h"

/// Whole snapshots out of the store into host memory, and back.
namespace gdpcache::engine {

/// A snapshot's bytes in host memory that `owner` keeps.
struct SnapshotContents {
  std::int64_t position = 0;               // tokens
  std::vector<cache::SnapshotPart> parts;  // one per layer
  std::shared_ptr<const void> owner;
};

/// `bytes` of the staging budget, and of the tenant's `share` of it, for a snapshot on its way. RESOURCE_EXHAUSTED.
absl::StatusOr<std::shared_ptr<StagingBuffer>> StageBytes(StagingPool& staging, std::int64_t bytes,
                                                          std::shared_ptr<cache::MemoryBudget> share);

using ContentsDone = absl::AnyInvocable<void(absl::StatusOr<SnapshotContents>)>;
using OutcomeDone = absl::AnyInvocable<void(absl::StatusOr<cache::SnapshotOutcome>)>;

absl::StatusOr<std::shared_ptr<Call>> MakeReadSnapshot(const Environment& environment, cache::SnapshotSpace space,
                                                       std::string key, std::shared_ptr<cache::MemoryBudget> share,
                                                       ContentsDone done);
absl::StatusOr<std::shared_ptr<Call>> MakeWriteSnapshot(const Environment& environment, cache::SnapshotSpace space,
                                                        std::string key, SnapshotContents contents, OutcomeDone done);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_SNAPSHOT_TRANSFER_H_
