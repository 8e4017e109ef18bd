#ifndef GDPCACHE_SERVER_ENGINE_ENGINE_H_
#define GDPCACHE_SERVER_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/cache/task_thread.h"
#include "server/engine/admission.h"
#include "server/engine/call.h"
#include "server/engine/environment.h"
#include "server/engine/event_poller.h"
#include "server/engine/executor.h"
#include "server/engine/prefill_request.h"
#include "server/engine/prefill_result.h"
#include "server/engine/slot_operations.h"
#include "server/engine/slot_transfer.h"
#include "server/engine/snapshot_operations.h"
#include "server/engine/snapshot_transfer.h"
#include "server/engine/staging_pool.h"
#include "server/engine/streamed_prefill.h"
#include "server/engine/streaming.h"
#include "server/engine/unary_prefill.h"

namespace gdpcache::engine {

/// Turns calls on caches into work for a backend: checks them, puts them in order, stages their bytes, runs them and
/// commits them in one step. The protocol comments of gdpcache.v1 document what each call does and its errors; here
/// stands only what concerns the code that calls. Each function checks its arguments and makes the call, which touches
/// nothing before Start; errors found later come to `done`. Thread-safe. Every call must be done before the engine
/// goes; it waits for what those that were told of early have left under way.
class Engine {
 public:
  /// Without `snapshots` calls that want some are UNIMPLEMENTED. `thread`, which must outlive the engine, gives staging
  /// memory back; nullptr: whoever uses it last.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      kernels::Backend& backend, const EngineOptions& options, cache::SnapshotStore* snapshots = nullptr,
      DeviceLostCallback on_device_lost = [](const absl::Status&) {}, cache::TaskThread* thread = nullptr);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// `request` may go when this returns; the data of its tensors and the auxiliary bytes of its snapshots must stay
  /// until the call is done.
  absl::StatusOr<std::shared_ptr<UnaryPrefill>> Prefill(CallContext context, const PrefillRequest& request,
                                                        PrefillDone done) const;

  /// `request` may go when this returns; the auxiliary bytes of its snapshots and `peer` must stay until the call is
  /// done. What `peer` was given may stay longer, but not longer than the engine.
  absl::StatusOr<std::shared_ptr<StreamedPrefill>> PrefillStream(CallContext context, const PrefillRequest& request,
                                                                 StreamPeer& peer, PrefillDone done) const;

  absl::StatusOr<std::shared_ptr<Call>> AcquireSlots(CallContext context, std::int64_t count, SlotsDone done) const;
  /// Once started it cannot be cancelled: the slots leave the session at once and are free when earlier calls on them
  /// are over.
  absl::StatusOr<std::shared_ptr<Call>> ReleaseSlots(CallContext context, std::vector<std::int64_t> slots,
                                                     Done done) const;
  absl::StatusOr<std::shared_ptr<Call>> ResetSlots(CallContext context, std::vector<std::int64_t> slots,
                                                   Done done) const;
  absl::StatusOr<std::shared_ptr<Call>> CopySlots(CallContext context, std::vector<SlotCopyRequest> copies,
                                                  Done done) const;

  /// `contents` runs once, before the first piece; `peer` as in PrefillStream.
  absl::StatusOr<std::shared_ptr<SlotReader>> ReadSlots(CallContext context, SlotSelection selection,
                                                        ContentsReady contents, StreamPeer& peer, Done done) const;
  /// `request` may go when this returns.
  absl::StatusOr<std::shared_ptr<SlotWriter>> WriteSlots(CallContext context, const WriteSlotsRequest& request,
                                                         Done done) const;

  absl::StatusOr<std::shared_ptr<Call>> SaveSnapshots(CallContext context, std::vector<SlotSaveRequest> saves,
                                                      SavesDone done) const;
  /// Takes its place in the order of its slots when all its snapshots are in memory: before Start returns, unless one
  /// has to be loaded.
  absl::StatusOr<std::shared_ptr<Call>> RestoreSnapshots(CallContext context, std::vector<SlotRestoreRequest> restores,
                                                         RestoresDone done) const;

  /// `done` gets a copy of the snapshot in staging memory. NOT_FOUND, DATA_LOSS; RESOURCE_EXHAUSTED when it does not
  /// fit into what is left of the staging budget, and of the tenant's `share` of it (nullptr: all).
  absl::StatusOr<std::shared_ptr<Call>> ReadSnapshot(cache::SnapshotSpace space, std::string key, ContentsDone done,
                                                     std::shared_ptr<cache::MemoryBudget> share = nullptr) const;
  /// Stores a snapshot whose bytes are in host memory, in the host tier. INVALID_ARGUMENT when the parts are not those
  /// of the space.
  absl::StatusOr<std::shared_ptr<Call>> WriteSnapshot(cache::SnapshotSpace space, std::string key,
                                                      SnapshotContents contents, OutcomeDone done) const;
  /// Host memory of the staging budget, for a snapshot on its way in; `share` as there. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<StagingBuffer>> Stage(std::int64_t bytes,
                                                       std::shared_ptr<cache::MemoryBudget> share = nullptr) const;
  /// Counts memory that the caller has, a request's say, against the staging budget for as long as the account lives,
  /// which must not be longer than the engine. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<StagingAccount>> Charge(std::int64_t bytes,
                                                         std::shared_ptr<cache::MemoryBudget> share = nullptr) const;

  const EngineOptions& options() const { return options_; }
  /// The backend's; nullptr where all memory is the host's.
  kernels::MemorySharing* memory_sharing() const { return environment_.backend.memory_sharing(); }
  const StagingPool& staging() const { return staging_; }
  const StagingPool& device_staging() const { return device_staging_; }
  const Admission& admission() const { return *admission_; }

  /// The calls on slots that have started and are not over: what runs, and what waits for earlier calls, for its turn,
  /// or for its caller.
  struct Load {
    std::int64_t running = 0;
    std::int64_t waiting = 0;
  };
  Load load() const;

 private:
  Engine(kernels::Backend& backend, const EngineOptions& options, cache::SnapshotStore* snapshots,
         std::unique_ptr<Executor> executor, DeviceLostCallback on_device_lost, cache::TaskThread* thread)
      : options_(options),
        on_device_lost_(std::move(on_device_lost)),
        staging_(backend, kernels::MemoryKind::kHost, options.staging_bytes, thread),
        device_staging_(backend, kernels::MemoryKind::kDevice, options.staging_bytes, thread),
        executor_(std::move(executor)),
        admission_(std::make_unique<Admission>(options.admission, options.workers)),
        environment_{
            backend,        options_,    staging_, backend.device_info().unified_memory ? nullptr : &device_staging_,
            *executor_,     *admission_, poller_,  snapshots,
            on_device_lost_} {}

  const EngineOptions options_;
  const DeviceLostCallback on_device_lost_;
  StagingPool staging_;
  StagingPool device_staging_;
  std::unique_ptr<Executor> executor_;
  const std::unique_ptr<Admission> admission_;
  EventPoller poller_;
  const Environment environment_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_ENGINE_H_
