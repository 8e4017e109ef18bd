#include "server/rpc/snapshot_codec.h"

#include <memory>

namespace gdpcache::rpc {

absl::StatusOr<cache::SnapshotSpace> SpaceOf(const cache::Catalog& catalog, const std::string& cache,
                                             const std::string& tenant) {
  const absl::StatusOr<std::shared_ptr<cache::Cache>> found = catalog.FindCache(cache);
  if (!found.ok()) return found.status();
  return cache::SnapshotSpace::Of(tenant, (*found)->spec().fingerprint, (*found)->geometry());
}

v1::SnapshotTier EncodeTier(cache::TierKind tier) {
  switch (tier) {
    case cache::TierKind::kDevice:
      return v1::SNAPSHOT_TIER_DEVICE;
    case cache::TierKind::kHost:
      return v1::SNAPSHOT_TIER_HOST;
    case cache::TierKind::kDisk:
      return v1::SNAPSHOT_TIER_DISK;
  }
  return v1::SNAPSHOT_TIER_UNSPECIFIED;
}

v1::Snapshot EncodeSnapshot(const cache::SnapshotSummary& snapshot, absl::Time now) {
  v1::Snapshot message;
  message.set_key(snapshot.key);
  message.set_position(snapshot.position);
  message.set_bytes(snapshot.bytes);
  for (const cache::TierKind tier : snapshot.tiers) message.add_tiers(EncodeTier(tier));
  message.set_pinned(snapshot.pinned);
  message.set_age_ms(absl::ToInt64Milliseconds(now - snapshot.stored));
  message.set_idle_ms(absl::ToInt64Milliseconds(now - snapshot.used));
  return message;
}

v1::SnapshotOutcome EncodeOutcome(const cache::SnapshotOutcome& outcome) {
  v1::SnapshotOutcome message;
  switch (outcome.result) {
    case cache::SnapshotResult::kPending:
      message.set_result(v1::SNAPSHOT_RESULT_PENDING);
      break;
    case cache::SnapshotResult::kStored:
      message.set_result(v1::SNAPSHOT_RESULT_STORED);
      break;
    case cache::SnapshotResult::kPresent:
      message.set_result(v1::SNAPSHOT_RESULT_PRESENT);
      break;
    case cache::SnapshotResult::kNoSpace:
      message.set_result(v1::SNAPSHOT_RESULT_NO_SPACE);
      break;
  }
  message.set_position(outcome.position);
  message.set_message(outcome.message);
  return message;
}

v1::SnapshotEvent EncodeEvent(const cache::SnapshotEvent& event) {
  v1::SnapshotEvent message;
  switch (event.type) {
    case cache::SnapshotEvent::Type::kStored:
      message.set_type(v1::SnapshotEvent::TYPE_STORED);
      break;
    case cache::SnapshotEvent::Type::kEvicted:
      message.set_type(v1::SnapshotEvent::TYPE_EVICTED);
      break;
    case cache::SnapshotEvent::Type::kDeleted:
      message.set_type(v1::SnapshotEvent::TYPE_DELETED);
      break;
    case cache::SnapshotEvent::Type::kSynced:
      message.set_type(v1::SnapshotEvent::TYPE_SYNCED);
      break;
  }
  message.set_key(event.key);
  message.set_position(event.position);
  return message;
}

}  // namespace gdpcache::rpc
