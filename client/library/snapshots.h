#ifndef GDPCACHE_CLIENT_LIBRARY_SNAPSHOTS_H_
#define GDPCACHE_CLIENT_LIBRARY_SNAPSHOTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/library/connection.h"
#include "gdpcache/snapshot.h"
#include "gdpcache/v1/snapshot.pb.h"

namespace gdpcache::client {

SnapshotTier FromProto(v1::SnapshotTier tier);
Snapshot FromProto(const v1::Snapshot& message);
SnapshotOutcome FromProto(const v1::SnapshotOutcome& message);
SnapshotEvent FromProto(const v1::SnapshotEvent& message);
void ToProto(const SnapshotDirective& directive, v1::SnapshotDirective* message);

/// Session::SaveSnapshots and Session::RestoreSnapshots.
absl::StatusOr<std::vector<SnapshotOutcome>> SaveSnapshots(const Connection& connection, const std::string& session,
                                                           absl::Span<const SlotSave> saves,
                                                           const CallOptions& options);
absl::StatusOr<std::vector<std::int64_t>> RestoreSnapshots(const Connection& connection, const std::string& session,
                                                           absl::Span<const SlotRestore> restores,
                                                           const std::string& pin, const CallOptions& options);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_SNAPSHOTS_H_
