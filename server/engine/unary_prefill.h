#ifndef GDPCACHE_SERVER_ENGINE_UNARY_PREFILL_H_
#define GDPCACHE_SERVER_ENGINE_UNARY_PREFILL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/engine/executor.h"
#include "server/engine/ordered_call.h"
#include "server/engine/prefill_plan.h"
#include "server/engine/prefill_request.h"
#include "server/engine/prefill_result.h"
#include "server/engine/segment.h"

namespace gdpcache::engine {

/// Where a unary prefill writes the results that have no place in shared memory: memory of plan().h_bytes, v_new_bytes
/// and final_state_bytes bytes, aligned for their elements; nullptr where that is 0. It must stay until the call is
/// done.
struct PrefillOutputs {
  void* h = nullptr;
  void* v_new = nullptr;
  void* final_state = nullptr;
};

/// A prefill whose tensors are all in memory. Computes in place, in one launch, which is its commit. Small ones that
/// wait for a worker at the same time share their launch, see PrefillBatch. One whose results are all in the device's
/// memory and that has a done event or a done flag leaves its slots to later calls once it has been launched, which
/// come behind it on their streams; no thread waits for its end. With a done event alone it is over for its caller by
/// then, too. One with a ready event takes its place among the calls on its slots when the event has happened; until
/// then it keeps neither a thread nor a stream.
class UnaryPrefill final : public OneStepCall, public MergeableTask {
 public:
  /// Validates and reserves; see Engine::Prefill.
  static absl::StatusOr<std::shared_ptr<UnaryPrefill>> Create(const Environment& environment, CallContext context,
                                                              const PrefillRequest& request, PrefillDone done);

  const PrefillPlan& plan() const { return plan_; }

  /// To be called before Start.
  void SetOutputs(const PrefillOutputs& outputs) {
    if (memory_.h == nullptr) memory_.h = outputs.h;
    if (memory_.v_new == nullptr) memory_.v_new = outputs.v_new;
    if (memory_.final_state == nullptr) memory_.final_state = outputs.final_state;
  }

  bool MergesWith(const MergeableTask& other) const override;
  double share() const override { return std::min(share_, 1.0); }
  absl::AnyInvocable<void()> RunMerged(absl::Span<const std::shared_ptr<MergeableTask>> tasks,
                                       kernels::Stream& stream) override;

 private:
  friend class PrefillBatch;

  static constexpr double kLaunchWork = 0.05;  // of any call

  UnaryPrefill(const Environment& environment, CallContext context, const PrefillRequest& request, PrefillPlan plan,
               std::shared_ptr<StagingAccount> staging, std::shared_ptr<StagingAccount> device_staging,
               PrefillDone done);

  /// Waits for the ready event, if there is one.
  void Prepare() override;
  /// Whether that is over.
  bool LookForInputs();
  absl::StatusOr<Places> Arrive() override;
  Executor::Here MayRunHere() const override;
  bool IsMergeable() const;
  /// Whether nothing is left for the host to do once the call has been launched, but maybe to tell of its end.
  bool EndsOnDevice() const;
  /// Whether the caller is told before that.
  bool IsAnsweredEarly() const { return EndsOnDevice() && done_flag_ == nullptr; }
  double StepWork() const override { return share_ + kLaunchWork; }
  absl::Status Execute(kernels::Stream& stream) override;
  /// Puts the call's decays, which are natural logarithms, into `converted`, in host memory, and `memory` onto that.
  absl::Status ConvertDecay(SegmentMemory& memory, float* converted, kernels::Stream& stream) const;
  /// What has to follow the arithmetic on the device itself. Comes behind work that cannot be taken back, so a refusal
  /// counts as the loss of the device: UNAVAILABLE. But the done flag is the host's to set then.
  absl::Status CompleteOnDevice(const SegmentMemory& memory, const Segment& segment, kernels::Stream& stream);
  /// What has to follow when all results are there.
  void CompleteOnHost();
  void LetGo() override {
    staging_.reset();
    device_staging_.reset();
    regions_.clear();
  }
  void Finish(absl::Status status) override;
  MergeableTask* AsMergeable(Executor::Here here) override;
  /// Tells the caller of the success.
  void Answer();

  const PrefillPlan plan_;
  SegmentMemory memory_;
  const std::byte* auxiliary_ = nullptr;
  const cache::Region* const ready_event_;
  const cache::Region* const done_event_;
  std::uint32_t* const done_flag_;  // nullptr: none
  const std::uint32_t done_value_;
  std::vector<std::shared_ptr<const cache::Region>> regions_;
  const bool has_snapshots_;
  const double share_;
  const bool launch_alone_;  // is what the host has to do, and soon done
  const Executor::Here here_;
  std::shared_ptr<StagingAccount> staging_;
  std::shared_ptr<StagingAccount> device_staging_;
  PrefillDone done_;
  PrefillResult result_;
  absl::Time created_;
  bool device_sets_flag_ = false;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_UNARY_PREFILL_H_
