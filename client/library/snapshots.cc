#include "client/library/snapshots.h"

#include "absl/strings/str_cat.h"
#include "client/library/status_conversion.h"
#include "gdpcache/client.h"

namespace gdpcache {
namespace {

using Stub = v1::StateCache::StubInterface;

}  // namespace

namespace client {
namespace {

SnapshotResult FromProto(v1::SnapshotResult result) {
  switch (result) {
    case v1::SNAPSHOT_RESULT_PENDING:
      return SnapshotResult::kPending;
    case v1::SNAPSHOT_RESULT_STORED:
      return SnapshotResult::kStored;
    case v1::SNAPSHOT_RESULT_PRESENT:
      return SnapshotResult::kPresent;
    case v1::SNAPSHOT_RESULT_NO_SPACE:
      return SnapshotResult::kNoSpace;
    default:
      return SnapshotResult::kUnknown;
  }
}

SnapshotEvent::Type FromProto(v1::SnapshotEvent::Type type) {
  switch (type) {
    case v1::SnapshotEvent::TYPE_STORED:
      return SnapshotEvent::Type::kStored;
    case v1::SnapshotEvent::TYPE_EVICTED:
      return SnapshotEvent::Type::kEvicted;
    case v1::SnapshotEvent::TYPE_DELETED:
      return SnapshotEvent::Type::kDeleted;
    case v1::SnapshotEvent::TYPE_SYNCED:
      return SnapshotEvent::Type::kSynced;
    default:
      return SnapshotEvent::Type::kUnknown;
  }
}

}  // namespace

SnapshotTier FromProto(v1::SnapshotTier tier) {
  switch (tier) {
    case v1::SNAPSHOT_TIER_DEVICE:
      return SnapshotTier::kDevice;
    case v1::SNAPSHOT_TIER_HOST:
      return SnapshotTier::kHost;
    case v1::SNAPSHOT_TIER_DISK:
      return SnapshotTier::kDisk;
    default:
      return SnapshotTier::kUnknown;
  }
}

Snapshot FromProto(const v1::Snapshot& message) {
  Snapshot snapshot;
  snapshot.key = message.key();
  snapshot.position = message.position();
  snapshot.bytes = message.bytes();
  for (const int tier : message.tiers()) snapshot.tiers.push_back(FromProto(static_cast<v1::SnapshotTier>(tier)));
  snapshot.pinned = message.pinned();
  snapshot.age = absl::Milliseconds(message.age_ms());
  snapshot.idle = absl::Milliseconds(message.idle_ms());
  return snapshot;
}

SnapshotOutcome FromProto(const v1::SnapshotOutcome& message) {
  return {FromProto(message.result()), message.position(), message.message()};
}

SnapshotEvent FromProto(const v1::SnapshotEvent& message) {
  return {FromProto(message.type()), message.key(), message.position()};
}

void ToProto(const SnapshotDirective& directive, v1::SnapshotDirective* message) {
  message->set_sequence(directive.sequence);
  message->set_boundary(directive.boundary);
  message->set_key(directive.key);
  message->set_auxiliary(directive.auxiliary);
}

absl::StatusOr<std::vector<SnapshotOutcome>> SaveSnapshots(const Connection& connection, const std::string& session,
                                                           absl::Span<const SlotSave> saves,
                                                           const CallOptions& options) {
  v1::SaveSnapshotsRequest request;
  request.set_session(session);
  for (const SlotSave& save : saves) {
    v1::SlotSave* message = request.add_saves();
    message->set_slot(save.slot);
    message->set_key(save.key);
  }
  v1::SaveSnapshotsResponse response;
  const absl::Status status = connection.Call(&Stub::SaveSnapshots, options, request, &response);
  if (!status.ok()) return status;
  if (response.outcomes_size() != request.saves_size()) {
    return ProtocolError(absl::StrCat(response.outcomes_size(), " outcomes of ", saves.size(), " saves"));
  }
  std::vector<SnapshotOutcome> outcomes;
  for (const v1::SnapshotOutcome& outcome : response.outcomes()) outcomes.push_back(FromProto(outcome));
  return outcomes;
}

absl::StatusOr<std::vector<std::int64_t>> RestoreSnapshots(const Connection& connection, const std::string& session,
                                                           absl::Span<const SlotRestore> restores,
                                                           const std::string& pin, const CallOptions& options) {
  v1::RestoreSnapshotsRequest request;
  request.set_session(session);
  request.set_pin(pin);
  for (const SlotRestore& restore : restores) {
    v1::SlotRestore* message = request.add_restores();
    message->set_key(restore.key);
    message->mutable_slots()->Assign(restore.slots.begin(), restore.slots.end());
  }
  v1::RestoreSnapshotsResponse response;
  const absl::Status status = connection.Call(&Stub::RestoreSnapshots, options, request, &response);
  if (!status.ok()) return status;
  if (response.positions_size() != request.restores_size()) {
    return ProtocolError(absl::StrCat(response.positions_size(), " positions of ", restores.size(), " restores"));
  }
  return std::vector<std::int64_t>(response.positions().begin(), response.positions().end());
}

}  // namespace client

absl::StatusOr<std::optional<PrefixMatch>> Client::LookupPrefix(const std::string& cache,
                                                                absl::Span<const std::string> keys,
                                                                absl::Duration lease,
                                                                const CallOptions& options) const {
  v1::LookupPrefixRequest request;
  request.set_cache(cache);
  for (const std::string& key : keys) request.add_keys(key);
  request.set_lease_ms(absl::ToInt64Milliseconds(lease));
  v1::LookupPrefixResponse response;
  const absl::Status status = connection_->Call(&Stub::LookupPrefix, options, request, &response);
  if (!status.ok()) return status;
  if (response.index() < 0) return std::nullopt;
  if (response.index() >= static_cast<std::int64_t>(keys.size()) || !response.has_snapshot()) {
    return client::ProtocolError(absl::StrCat("a match of key ", response.index(), " of ", keys.size()));
  }
  return PrefixMatch{response.index(), client::FromProto(response.snapshot()), response.pin()};
}

absl::StatusOr<SnapshotPin> Client::PinSnapshots(const std::string& cache, absl::Span<const std::string> keys,
                                                 absl::Duration ttl, const CallOptions& options) const {
  v1::PinSnapshotsRequest request;
  request.set_cache(cache);
  for (const std::string& key : keys) request.add_keys(key);
  request.set_ttl_ms(absl::ToInt64Milliseconds(ttl));
  v1::PinSnapshotsResponse response;
  const absl::Status status = connection_->Call(&Stub::PinSnapshots, options, request, &response);
  if (!status.ok()) return status;
  return SnapshotPin{response.pin(), absl::Milliseconds(response.ttl_ms())};
}

absl::Status Client::UnpinSnapshots(const std::string& cache, const std::string& pin,
                                    const CallOptions& options) const {
  v1::UnpinSnapshotsRequest request;
  request.set_cache(cache);
  request.set_pin(pin);
  v1::UnpinSnapshotsResponse response;
  return connection_->Call(&Stub::UnpinSnapshots, options, request, &response);
}

absl::StatusOr<std::int64_t> Client::DeleteSnapshots(const std::string& cache, absl::Span<const std::string> keys,
                                                     bool force, const CallOptions& options) const {
  v1::DeleteSnapshotsRequest request;
  request.set_cache(cache);
  for (const std::string& key : keys) request.add_keys(key);
  request.set_force(force);
  v1::DeleteSnapshotsResponse response;
  const absl::Status status = connection_->Call(&Stub::DeleteSnapshots, options, request, &response);
  if (!status.ok()) return status;
  return response.deleted();
}

absl::StatusOr<SnapshotPage> Client::ListSnapshots(const std::string& cache, std::int64_t page_size,
                                                   const std::string& page_token, const CallOptions& options) const {
  v1::ListSnapshotsRequest request;
  request.set_cache(cache);
  request.set_page_size(page_size);
  request.set_page_token(page_token);
  v1::ListSnapshotsResponse response;
  const absl::Status status = connection_->Call(&Stub::ListSnapshots, options, request, &response);
  if (!status.ok()) return status;
  SnapshotPage page;
  for (const v1::Snapshot& snapshot : response.snapshots()) page.snapshots.push_back(client::FromProto(snapshot));
  page.next_page_token = response.next_page_token();
  return page;
}

}  // namespace gdpcache
