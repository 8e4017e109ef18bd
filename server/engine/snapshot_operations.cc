#include "server/engine/snapshot_operations.h"

#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/copy_and_wait.h"
#include "server/cache/errors.h"
#include "server/engine/distinct_values.h"
#include "server/engine/ordered_call.h"
#include "server/engine/slot_memory.h"

namespace gdpcache::engine {
namespace {

using cache::InvalidField;

class SaveSnapshotsCall final : public OneStepCall {
 public:
  SaveSnapshotsCall(const Environment& environment, CallContext context, std::vector<SlotSaveRequest> saves,
                    SavesDone done)
      : OneStepCall(environment, std::move(context)), saves_(std::move(saves)), done_(std::move(done)) {}

 private:
  absl::StatusOr<Places> Arrive() override {
    absl::flat_hash_set<std::int64_t> slots;
    for (std::size_t i = 0; i < saves_.size(); ++i) {
      absl::Status status =
          cache().slots().CheckSlotHeld(context().session->key(), saves_[i].slot, absl::StrCat("saves[", i, "].slot"));
      if (!status.ok()) return status;
      slots.insert(saves_[i].slot);
    }
    return Places{AllLayers(cache().geometry()), {slots.begin(), slots.end()}};
  }

  Executor::Here MayRunHere() const override { return HereIfFew(std::ssize(saves_)); }

  absl::Status Execute(kernels::Stream& stream) override {
    for (std::size_t i = 0; i < saves_.size(); ++i) {
      if (absl::Status status = CheckLayersAgree(i); !status.ok()) return status;
    }
    cache::SnapshotRecord record{.space = SpaceOf(*context().session), .key = "", .position = 0};
    std::vector<cache::SnapshotDraft> drafts;
    drafts.reserve(saves_.size());
    std::vector<kernels::ByteCopy> copies;
    for (const SlotSaveRequest& save : saves_) {
      record.key = save.key;
      record.position = cache().slots().Position(0, save.slot);
      drafts.push_back(environment().snapshots->BeginWhole(record, cache::TierKind::kDevice));
      if (!drafts.back().parts().empty()) {
        AppendCopies(SnapshotRanges(drafts.back().parts()), SlotRanges(cache(), save.slot), copies);
      }
    }
    if (absl::Status status = BeginCommit(); !status.ok()) return status;
    if (!copies.empty()) {
      if (absl::Status status = CopyAndWait(environment().backend, copies, stream); !status.ok()) return status;
    }
    outcomes_.reserve(saves_.size());
    for (cache::SnapshotDraft& draft : drafts) {
      const bool pending = draft.outcome().result == cache::SnapshotResult::kPending;
      outcomes_.push_back(pending ? environment().snapshots->Commit(std::move(draft)) : draft.outcome());
    }
    return absl::OkStatus();
  }

  absl::Status CheckLayersAgree(std::size_t i) const {
    const std::int64_t slot = saves_[i].slot;
    const std::int64_t first = cache().slots().Position(0, slot);
    for (std::int64_t layer = 1; layer < cache().geometry().layers; ++layer) {
      const std::int64_t position = cache().slots().Position(layer, slot);
      if (position == first) continue;
      return absl::FailedPreconditionError(absl::StrCat("saves[", i, "].slot is ", slot,
                                                        ", whose layer 0 is at position ", first, " and layer ", layer,
                                                        " at ", position));
    }
    return absl::OkStatus();
  }

  void Finish(absl::Status status) override { done_(ResultOr(std::move(status), std::move(outcomes_))); }

  const std::vector<SlotSaveRequest> saves_;
  SavesDone done_;
  std::vector<cache::SnapshotOutcome> outcomes_;
};

/// Gets all snapshots into memory before it takes its place among the calls on its slots, so that nobody waits behind
/// it for a disk.
class RestoreSnapshotsCall final : public OneStepCall {
 public:
  RestoreSnapshotsCall(const Environment& environment, CallContext context, std::vector<SlotRestoreRequest> restores,
                       std::vector<std::int64_t> slots, RestoresDone done)
      : OneStepCall(environment, std::move(context)),
        restores_(std::move(restores)),
        slots_(std::move(slots)),
        done_(std::move(done)),
        fetched_(restores_.size()),
        missing_(restores_.size()) {}

 private:
  void Prepare() override {
    if (restores_.empty()) return Prepared(absl::OkStatus());
    const cache::SnapshotSpace space = SpaceOf(*context().session);
    const auto self = std::static_pointer_cast<RestoreSnapshotsCall>(shared_from_this());
    for (std::size_t i = 0; i < restores_.size(); ++i) {
      if (IsOver()) return;
      environment().snapshots->Fetch(
          space, restores_[i].key,
          [self, i](absl::StatusOr<cache::SnapshotStore::Fetched> fetched) { self->Take(i, std::move(fetched)); });
    }
  }

  bool IsOver() {
    const std::lock_guard lock(mutex());
    return EndedLocked().has_value();
  }

  void Take(std::size_t i, absl::StatusOr<cache::SnapshotStore::Fetched> fetched) {
    if (!fetched.ok()) return Prepared(Annotated(fetched.status(), i));
    if (fetched->position > kMaxPosition) {
      return Prepared(Annotated(absl::FailedPreconditionError(absl::StrCat("its position is ", fetched->position,
                                                                           "; a slot's may be ", kMaxPosition)),
                                i));
    }
    {
      const std::lock_guard lock(mutex());
      if (EndedLocked().has_value()) return;
      fetched_[i] = *std::move(fetched);
      if (--missing_ > 0) return;
    }
    Prepared(absl::OkStatus());
  }

  /// The error with the key it is about.
  absl::Status Annotated(const absl::Status& error, std::size_t i) const {
    absl::Status status(error.code(), absl::StrCat("restores[", i, "].key is ",
                                                   absl::BytesToHexString(restores_[i].key), ": ", error.message()));
    error.ForEachPayload(
        [&status](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
    return status;
  }

  absl::StatusOr<Places> Arrive() override {
    for (std::size_t i = 0; i < restores_.size(); ++i) {
      absl::Status status = cache().slots().CheckHeld(context().session->key(), restores_[i].slots,
                                                      absl::StrCat("restores[", i, "].slots"));
      if (!status.ok()) return status;
    }
    return Places{AllLayers(cache().geometry()), slots_};
  }

  Executor::Here MayRunHere() const override { return HereIfFew(std::ssize(slots_)); }

  absl::Status Execute(kernels::Stream& stream) override {
    std::vector<kernels::ByteCopy> copies;
    for (std::size_t i = 0; i < restores_.size(); ++i) {
      const std::vector<kernels::ByteRange> from = SnapshotRanges(fetched_[i].copy->parts());
      for (const std::int64_t slot : restores_[i].slots) AppendCopies(SlotRanges(cache(), slot), from, copies);
    }
    if (absl::Status status = BeginCommit(); !status.ok()) return status;
    if (!copies.empty()) {
      if (absl::Status status = CopyAndWait(environment().backend, copies, stream); !status.ok()) return status;
    }
    for (std::size_t i = 0; i < restores_.size(); ++i) {
      positions_.push_back(fetched_[i].position);
      for (const std::int64_t slot : restores_[i].slots) {
        for (std::int64_t layer = 0; layer < cache().geometry().layers; ++layer) {
          cache().slots().SetPosition(layer, slot, fetched_[i].position);
        }
      }
    }
    return absl::OkStatus();
  }

  void LetGo() override {
    std::vector<cache::SnapshotStore::Fetched> dropped;
    const std::lock_guard lock(mutex());
    dropped.swap(fetched_);
  }

  void Finish(absl::Status status) override { done_(ResultOr(std::move(status), std::move(positions_))); }

  const std::vector<SlotRestoreRequest> restores_;
  const std::vector<std::int64_t> slots_;  // of all restores
  RestoresDone done_;
  std::vector<std::int64_t> positions_;

  // Guarded by mutex() until the call is prepared.
  std::vector<cache::SnapshotStore::Fetched> fetched_;  // by restore
  std::size_t missing_;
};

absl::Status CheckCount(absl::string_view field, std::size_t count) {
  if (static_cast<std::int64_t>(count) <= kMaxSlotSnapshots) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("has ", count, " entries; it may have ", kMaxSlotSnapshots));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Call>> MakeSaveSnapshots(const Environment& environment, CallContext context,
                                                        std::vector<SlotSaveRequest> saves, SavesDone done) {
  if (environment.snapshots == nullptr) return absl::UnimplementedError("the server keeps no snapshots");
  if (absl::Status status = CheckCount("saves", saves.size()); !status.ok()) return status;
  DistinctValues keys("keys");
  for (std::size_t i = 0; i < saves.size(); ++i) {
    const std::string field = absl::StrCat("saves[", i, "].key");
    absl::Status status = cache::CheckSnapshotKey(field, saves[i].key);
    if (status.ok()) status = keys.Add(absl::BytesToHexString(saves[i].key), field);
    if (!status.ok()) return status;
  }
  return std::make_shared<SaveSnapshotsCall>(environment, std::move(context), std::move(saves), std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> MakeRestoreSnapshots(const Environment& environment, CallContext context,
                                                           std::vector<SlotRestoreRequest> restores,
                                                           RestoresDone done) {
  if (environment.snapshots == nullptr) return absl::UnimplementedError("the server keeps no snapshots");
  if (absl::Status status = CheckCount("restores", restores.size()); !status.ok()) return status;
  std::size_t named = 0;
  for (const SlotRestoreRequest& restore : restores) named += restore.slots.size();
  const std::int64_t cache_slots = context.session->cache()->geometry().slots;
  if (named > static_cast<std::size_t>(cache_slots)) {
    return InvalidField("restores", absl::StrCat("name ", cache::Counted(static_cast<std::int64_t>(named), "slot"),
                                                 "; the cache has ", cache_slots));
  }
  std::vector<std::int64_t> slots;
  DistinctValues distinct("slots");
  for (std::size_t i = 0; i < restores.size(); ++i) {
    const std::string field = absl::StrCat("restores[", i, "].");
    if (absl::Status status = cache::CheckSnapshotKey(field + "key", restores[i].key); !status.ok()) return status;
    for (std::size_t j = 0; j < restores[i].slots.size(); ++j) {
      const std::int64_t slot = restores[i].slots[j];
      absl::Status status = distinct.Add(absl::StrCat(slot), absl::StrCat(field, "slots[", j, "]"));
      if (!status.ok()) return status;
      slots.push_back(slot);
    }
  }
  return std::make_shared<RestoreSnapshotsCall>(environment, std::move(context), std::move(restores), std::move(slots),
                                                std::move(done));
}

}  // namespace gdpcache::engine
