#include "server/engine/engine.h"

#include <algorithm>
#include <utility>

namespace gdpcache::engine {
namespace {

/// Segments so small that a few streams fit into the budget side by side.
EngineOptions Fitted(EngineOptions options) {
  constexpr std::int64_t kSegmentsInBudget = 32;
  options.segment_bytes = std::min(options.segment_bytes, options.staging_bytes / kSegmentsInBudget);
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(kernels::Backend& backend, const EngineOptions& options,
                                                       cache::SnapshotStore* snapshots,
                                                       DeviceLostCallback on_device_lost, cache::TaskThread* thread) {
  absl::StatusOr<std::unique_ptr<Executor>> executor = Executor::Create(backend, options.workers);
  if (!executor.ok()) return executor.status();
  return std::unique_ptr<Engine>(
      new Engine(backend, Fitted(options), snapshots, *std::move(executor), std::move(on_device_lost), thread));
}

Engine::~Engine() {
  executor_->Stop();  // whose tasks may have something left to be watched
  poller_.Stop();
}

absl::StatusOr<std::shared_ptr<UnaryPrefill>> Engine::Prefill(CallContext context, const PrefillRequest& request,
                                                              PrefillDone done) const {
  return UnaryPrefill::Create(environment_, std::move(context), request, std::move(done));
}

absl::StatusOr<std::shared_ptr<StreamedPrefill>> Engine::PrefillStream(CallContext context,
                                                                       const PrefillRequest& request, StreamPeer& peer,
                                                                       PrefillDone done) const {
  return StreamedPrefill::Create(environment_, std::move(context), request, peer, std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> Engine::AcquireSlots(CallContext context, std::int64_t count,
                                                           SlotsDone done) const {
  return MakeAcquireSlots(environment_, std::move(context), count, std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> Engine::ReleaseSlots(CallContext context, std::vector<std::int64_t> slots,
                                                           Done done) const {
  return MakeReleaseSlots(environment_, std::move(context), std::move(slots), std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> Engine::ResetSlots(CallContext context, std::vector<std::int64_t> slots,
                                                         Done done) const {
  return MakeResetSlots(environment_, std::move(context), std::move(slots), std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> Engine::CopySlots(CallContext context, std::vector<SlotCopyRequest> copies,
                                                        Done done) const {
  return MakeCopySlots(environment_, std::move(context), std::move(copies), std::move(done));
}

absl::StatusOr<std::shared_ptr<SlotReader>> Engine::ReadSlots(CallContext context, SlotSelection selection,
                                                              ContentsReady contents, StreamPeer& peer,
                                                              Done done) const {
  return SlotReader::Create(environment_, std::move(context), std::move(selection), std::move(contents), peer,
                            std::move(done));
}

absl::StatusOr<std::shared_ptr<SlotWriter>> Engine::WriteSlots(CallContext context, const WriteSlotsRequest& request,
                                                               Done done) const {
  return SlotWriter::Create(environment_, std::move(context), request, std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> Engine::SaveSnapshots(CallContext context, std::vector<SlotSaveRequest> saves,
                                                            SavesDone done) const {
  return MakeSaveSnapshots(environment_, std::move(context), std::move(saves), std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> Engine::RestoreSnapshots(CallContext context,
                                                               std::vector<SlotRestoreRequest> restores,
                                                               RestoresDone done) const {
  return MakeRestoreSnapshots(environment_, std::move(context), std::move(restores), std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> Engine::ReadSnapshot(cache::SnapshotSpace space, std::string key,
                                                           ContentsDone done,
                                                           std::shared_ptr<cache::MemoryBudget> share) const {
  return MakeReadSnapshot(environment_, std::move(space), std::move(key), std::move(share), std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> Engine::WriteSnapshot(cache::SnapshotSpace space, std::string key,
                                                            SnapshotContents contents, OutcomeDone done) const {
  return MakeWriteSnapshot(environment_, std::move(space), std::move(key), std::move(contents), std::move(done));
}

absl::StatusOr<std::shared_ptr<StagingBuffer>> Engine::Stage(std::int64_t bytes,
                                                             std::shared_ptr<cache::MemoryBudget> share) const {
  return StageBytes(environment_.staging, bytes, std::move(share));
}

absl::StatusOr<std::shared_ptr<StagingAccount>> Engine::Charge(std::int64_t bytes,
                                                               std::shared_ptr<cache::MemoryBudget> share) const {
  return environment_.staging.Open(bytes, std::move(share));
}

Engine::Load Engine::load() const {
  Load load;
  load.running = executor_->running();
  load.waiting = std::max<std::int64_t>(0, admission_->calls() - load.running);  // the two are read one after the other
  return load;
}

}  // namespace gdpcache::engine
