#ifndef GDPCACHE_SERVER_ENGINE_ENGINE_H_
#define GDPCACHE_SERVER_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/cache/clock.h"
#include "server/engine/call.h"
#include "server/engine/executor.h"
#include "server/engine/prefill_plan.h"
#include "server/engine/prefill_request.h"
#include "server/engine/staging_pool.h"
#include "server/engine/streaming.h"

namespace gdpcache::engine {

struct EngineOptions {
  /// Inputs and results of all calls in flight together.
  std::int64_t staging_bytes = std::int64_t{1} << 30;
  int workers = 4;
  /// A unary answer's tensors; larger ones must be streamed.
  std::int64_t max_unary_output_bytes = std::int64_t{64} << 20;
  /// Inputs and results of one segment of a streamed prefill, about.
  std::int64_t segment_bytes = std::int64_t{8} << 20;
};

/// Microseconds a prefill spent; prefill.proto documents them.
struct PrefillTiming {
  std::int64_t queue_us = 0;
  std::int64_t stage_in_us = 0;
  std::int64_t compute_us = 0;
  std::int64_t stage_out_us = 0;
  std::int64_t total_us = 0;
};

struct PrefillResult {
  std::vector<std::int64_t> positions;  // [N] after the call; -1 for sequences without a slot
  PrefillTiming timing;
};

/// Where a unary prefill writes its results: memory of plan().h_bytes, v_new_bytes and final_state_bytes bytes; nullptr
/// where that is 0. It must stay until the call is done.
struct PrefillOutputs {
  void* h = nullptr;
  void* v_new = nullptr;
  void* final_state = nullptr;
};

class PrefillCall : public Call {
 public:
  virtual const PrefillPlan& plan() const = 0;
  /// Before Start.
  virtual void SetOutputs(const PrefillOutputs& outputs) = 0;
};

class PrefillStreamCall : public Call, public StreamedInput, public StreamedOutput {
 public:
  virtual const PrefillPlan& plan() const = 0;
};

/// Which states a ReadSlots or WriteSlots is about: the cross product, in this order.
struct SlotSelection {
  std::vector<std::int64_t> slots;   // distinct
  std::vector<std::int64_t> layers;  // distinct; empty: all, ascending
};

/// What ReadSlots tells before the bytes.
struct SlotContents {
  std::vector<std::int64_t> layers;     // the selection's, spelled out
  std::vector<std::int64_t> positions;  // [slots, layers]
  std::int64_t state_bytes = 0;
  std::int64_t auxiliary_bytes = 0;
};

/// Its `contents` callback runs once, before the first piece.
class ReadSlotsCall : public Call, public StreamedOutput {};

struct WriteSlotsRequest {
  SlotSelection selection;
  std::vector<std::int64_t> positions;  // [slots, layers]; empty: all zero
  TensorArgument state;                 // bytes follow as kState
  TensorArgument auxiliary;             // bytes follow as kAuxiliary
};

class WriteSlotsCall : public Call, public StreamedInput {};

struct SlotCopyRequest {
  std::int64_t source = 0;
  std::vector<std::int64_t> destinations;
};

/// Turns calls on caches into work for a backend: checks them, puts them in order, stages their bytes, runs them and
/// commits them in one step. The protocol comments of gdpcache.v1 document what each call does and its errors; here
/// stands only what concerns the code that calls. Each function checks its arguments and makes the call, which touches
/// nothing before Start. Thread-safe. Every call must be done before the engine goes.
class Engine {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using PrefillDone = absl::AnyInvocable<void(absl::StatusOr<PrefillResult>)>;
  using SlotsDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<std::int64_t>>)>;
  using ContentsReady = absl::AnyInvocable<void(SlotContents)>;

  static absl::StatusOr<std::unique_ptr<Engine>> Create(kernels::Backend& backend, const cache::Clock& clock,
                                                        const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// `request` and what it points to must stay until the call is done.
  absl::StatusOr<std::shared_ptr<PrefillCall>> Prefill(CallContext context, const PrefillRequest& request,
                                                       PrefillDone done);

  /// `request` may go when this returns. `peer` must stay until the call is done; what it is given may stay longer.
  absl::StatusOr<std::shared_ptr<PrefillStreamCall>> PrefillStream(CallContext context, const PrefillRequest& request,
                                                                   StreamPeer& peer, PrefillDone done);

  absl::StatusOr<std::shared_ptr<Call>> AcquireSlots(CallContext context, std::int64_t count, SlotsDone done);
  /// Once started it cannot be cancelled: the slots leave the session at once and are free when earlier calls on them
  /// are over.
  absl::StatusOr<std::shared_ptr<Call>> ReleaseSlots(CallContext context, std::vector<std::int64_t> slots, Done done);
  absl::StatusOr<std::shared_ptr<Call>> ResetSlots(CallContext context, std::vector<std::int64_t> slots, Done done);
  absl::StatusOr<std::shared_ptr<Call>> CopySlots(CallContext context, std::vector<SlotCopyRequest> copies, Done done);

  absl::StatusOr<std::shared_ptr<ReadSlotsCall>> ReadSlots(CallContext context, SlotSelection selection,
                                                           ContentsReady contents, StreamPeer& peer, Done done);
  /// `request` may go when this returns.
  absl::StatusOr<std::shared_ptr<WriteSlotsCall>> WriteSlots(CallContext context, const WriteSlotsRequest& request,
                                                             StreamPeer& peer, Done done);

  const EngineOptions& options() const { return options_; }
  const StagingPool& staging() const { return staging_; }

 private:
  Engine(kernels::Backend& backend, const cache::Clock& clock, const EngineOptions& options,
         std::unique_ptr<Executor> executor);

  kernels::Backend& backend_;
  const cache::Clock& clock_;
  const EngineOptions options_;
  StagingPool staging_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_ENGINE_H_
