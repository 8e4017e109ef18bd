#include "server/rpc/control/snapshots.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"
#include "server/engine/slot_memory.h"
#include "server/rpc/snapshot_codec.h"

namespace gdpcache::rpc {
namespace {

using cache::InvalidField;

constexpr int kMaxKeys = 65'536;  // of one call
constexpr std::int64_t kDefaultPage = 1'000;
constexpr std::int64_t kMaxPage = 10'000;
constexpr std::int64_t kListedSnapshotBytes = 384;  // with the longest key, as an object and on its way

using Keys = google::protobuf::RepeatedPtrField<std::string>;

absl::StatusOr<std::vector<absl::string_view>> CheckKeys(const Keys& keys) {
  if (keys.size() > kMaxKeys) {
    return InvalidField("keys", absl::StrCat("has ", keys.size(), " entries; it may have at most ", kMaxKeys));
  }
  std::vector<absl::string_view> views;
  views.reserve(static_cast<std::size_t>(keys.size()));
  for (const std::string& key : keys) {
    if (key.size() < cache::kMinSnapshotKeyBytes || key.size() > cache::kMaxSnapshotKeyBytes) {
      return cache::CheckSnapshotKey(absl::StrCat("keys[", views.size(), "]"), key);
    }
    views.emplace_back(key);
  }
  return views;
}

absl::Status CheckDuration(absl::string_view field, std::int64_t milliseconds, absl::Duration most) {
  if (milliseconds >= 0 && absl::Milliseconds(milliseconds) <= most) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", milliseconds, "; it must be from 0 to ",
                                          absl::ToInt64Milliseconds(most), ", the server's max_pin_ttl"));
}

// A page's token is the last key shown, in hexadecimal.
absl::StatusOr<std::string> DecodePageToken(const std::string& token) {
  const bool is_hex = std::all_of(token.begin(), token.end(),
                                  [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); });
  const std::size_t bytes = token.size() / 2;
  const bool fits = token.empty() || (token.size() % 2 == 0 && bytes >= cache::kMinSnapshotKeyBytes &&
                                      bytes <= cache::kMaxSnapshotKeyBytes);
  if (is_hex && fits) return absl::HexStringToBytes(token);
  return InvalidField("page_token", absl::StrCat("is ", cache::Quoted(token), "; it is no token of this server's"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<engine::Call>> SaveSnapshots(const SnapshotPlane& plane, const CallOrigin& origin,
                                                            const v1::SaveSnapshotsRequest& request,
                                                            v1::SaveSnapshotsResponse& response, CallDone done) {
  absl::StatusOr<engine::CallContext> context = ContextOf(plane.catalog, request.session(), origin);
  if (!context.ok()) return context.status();
  std::vector<engine::SlotSaveRequest> saves;
  saves.reserve(static_cast<std::size_t>(request.saves_size()));
  for (const v1::SlotSave& save : request.saves()) saves.push_back({save.slot(), save.key()});
  return plane.engine.SaveSnapshots(
      *std::move(context), std::move(saves),
      [&response, done = std::move(done)](absl::StatusOr<std::vector<cache::SnapshotOutcome>> outcomes) mutable {
        if (outcomes.ok()) {
          for (const cache::SnapshotOutcome& outcome : *outcomes) *response.add_outcomes() = EncodeOutcome(outcome);
        }
        done(outcomes.status());
      });
}

absl::StatusOr<std::shared_ptr<engine::Call>> RestoreSnapshots(const SnapshotPlane& plane, const CallOrigin& origin,
                                                               const v1::RestoreSnapshotsRequest& request,
                                                               v1::RestoreSnapshotsResponse& response, CallDone done) {
  absl::StatusOr<engine::CallContext> context = ContextOf(plane.catalog, request.session(), origin);
  if (!context.ok()) return context.status();
  std::vector<engine::SlotRestoreRequest> restores;
  restores.reserve(static_cast<std::size_t>(request.restores_size()));
  for (const v1::SlotRestore& restore : request.restores()) {
    restores.push_back({restore.key(), {restore.slots().begin(), restore.slots().end()}});
  }
  cache::SnapshotSpace space = engine::SpaceOf(*context->session);
  return plane.engine.RestoreSnapshots(
      *std::move(context), std::move(restores),
      [&store = plane.store, &response, space = std::move(space), pin = request.pin(),
       done = std::move(done)](absl::StatusOr<std::vector<std::int64_t>> positions) mutable {
        if (positions.ok()) {
          response.mutable_positions()->Add(positions->begin(), positions->end());
          // One that has just expired has been released, too.
          if (!pin.empty()) store.Unpin(space, pin).IgnoreError();
        }
        done(positions.status());
      });
}

absl::Status LookupPrefix(const SnapshotPlane& plane, const std::string& tenant, const v1::LookupPrefixRequest& request,
                          v1::LookupPrefixResponse& response) {
  const absl::StatusOr<cache::SnapshotSpace> space = SpaceOf(plane.catalog, request.cache(), tenant);
  if (!space.ok()) return space.status();
  const absl::StatusOr<std::vector<absl::string_view>> keys = CheckKeys(request.keys());
  if (!keys.ok()) return keys.status();
  if (absl::Status status = CheckDuration("lease_ms", request.lease_ms(), plane.max_pin_ttl); !status.ok()) {
    return status;
  }
  const std::optional<cache::SnapshotStore::Lookup> found =
      plane.store.LookupPrefix(*space, *keys, absl::Milliseconds(request.lease_ms()));
  response.set_index(found.has_value() ? found->index : -1);
  if (!found.has_value()) return absl::OkStatus();
  *response.mutable_snapshot() = EncodeSnapshot(found->snapshot, plane.clock.Now());
  response.set_pin(found->pin);
  return absl::OkStatus();
}

absl::Status PinSnapshots(const SnapshotPlane& plane, const std::string& tenant, const v1::PinSnapshotsRequest& request,
                          v1::PinSnapshotsResponse& response) {
  const absl::StatusOr<cache::SnapshotSpace> space = SpaceOf(plane.catalog, request.cache(), tenant);
  if (!space.ok()) return space.status();
  const absl::StatusOr<std::vector<absl::string_view>> keys = CheckKeys(request.keys());
  if (!keys.ok()) return keys.status();
  if (keys->empty()) return InvalidField("keys", "is empty; there must be at least one");
  if (absl::Status status = CheckDuration("ttl_ms", request.ttl_ms(), plane.max_pin_ttl); !status.ok()) return status;
  const absl::StatusOr<cache::SnapshotStore::Pinned> pinned =
      plane.store.Pin(*space, *keys, absl::Milliseconds(request.ttl_ms()));
  if (!pinned.ok()) return pinned.status();
  response.set_pin(pinned->pin);
  response.set_ttl_ms(absl::ToInt64Milliseconds(pinned->ttl));
  return absl::OkStatus();
}

absl::Status UnpinSnapshots(const SnapshotPlane& plane, const std::string& tenant,
                            const v1::UnpinSnapshotsRequest& request) {
  const absl::StatusOr<cache::SnapshotSpace> space = SpaceOf(plane.catalog, request.cache(), tenant);
  if (!space.ok()) return space.status();
  return plane.store.Unpin(*space, request.pin());
}

absl::Status DeleteSnapshots(const SnapshotPlane& plane, const std::string& tenant,
                             const v1::DeleteSnapshotsRequest& request, v1::DeleteSnapshotsResponse& response) {
  const absl::StatusOr<cache::SnapshotSpace> space = SpaceOf(plane.catalog, request.cache(), tenant);
  if (!space.ok()) return space.status();
  const absl::StatusOr<std::vector<absl::string_view>> keys = CheckKeys(request.keys());
  if (!keys.ok()) return keys.status();
  const absl::StatusOr<std::int64_t> deleted = plane.store.Delete(*space, *keys, request.force());
  if (!deleted.ok()) return deleted.status();
  response.set_deleted(*deleted);
  return absl::OkStatus();
}

absl::Status ListSnapshots(const SnapshotPlane& plane, const std::string& tenant,
                           const v1::ListSnapshotsRequest& request, ChargeAnswer charge,
                           v1::ListSnapshotsResponse& response) {
  const absl::StatusOr<cache::SnapshotSpace> space = SpaceOf(plane.catalog, request.cache(), tenant);
  if (!space.ok()) return space.status();
  const std::int64_t page = request.page_size() == 0 ? kDefaultPage : request.page_size();
  if (page < 0 || page > kMaxPage) {
    return InvalidField("page_size", absl::StrCat("is ", page, "; it must be from 0 to ", kMaxPage));
  }
  const absl::StatusOr<std::string> after = DecodePageToken(request.page_token());
  if (!after.ok()) return after.status();
  // One more than the page tells whether there is another.
  const std::vector<cache::SnapshotSummary> found = plane.store.List(*space, *after, page + 1);
  if (absl::Status status = charge(std::ssize(found) * kListedSnapshotBytes); !status.ok()) return status;
  const absl::Time now = plane.clock.Now();
  for (const cache::SnapshotSummary& snapshot : found) {
    if (response.snapshots_size() == page) break;
    *response.add_snapshots() = EncodeSnapshot(snapshot, now);
  }
  if (static_cast<std::int64_t>(found.size()) > page) {
    response.set_next_page_token(absl::BytesToHexString(response.snapshots(static_cast<int>(page) - 1).key()));
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::rpc
