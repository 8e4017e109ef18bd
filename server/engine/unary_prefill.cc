#include "server/engine/unary_prefill.h"

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache/clock.h"
#include "server/engine/device_segment.h"
#include "server/engine/prefill_batch.h"
#include "server/engine/prefill_snapshots.h"
#include "server/engine/prefill_steps.h"
#include "server/engine/shared_places.h"

namespace gdpcache::engine {
namespace {

/// Work that takes at most so much of everything.
struct WorkLimits {
  double flops;
  double copied_bytes;   // gathered by the host
  double touched_bytes;  // by the arithmetic
};
// Over in about the time that waking a worker takes, where the processor does it.
constexpr WorkLimits kTiny = {.flops = 2e6, .copied_bytes = 1e9, .touched_bytes = 1e6};
// Over in about 100 us: the next token of a layer's states, for a few sequences.
constexpr WorkLimits kUnifiedSmall = {.flops = 1e7, .copied_bytes = 1e9, .touched_bytes = 5e6};
constexpr WorkLimits kDeviceSmall = {.flops = 1e9, .copied_bytes = 1e6, .touched_bytes = 64e6};
// What is merged into one launch: about a millisecond's work, so that nobody waits longer for the others than the
// launches that are saved would have taken.
constexpr WorkLimits kUnifiedMerge = {.flops = 5e7, .copied_bytes = 1e9, .touched_bytes = 16e6};
constexpr WorkLimits kDeviceMerge = {.flops = 2e10, .copied_bytes = 8e6, .touched_bytes = 512e6};
// Sequences and boundaries that are described in less than 200 us, to be launched by a thread that others wait for.
constexpr std::int64_t kShortLaunch = 512;
// A call beyond this gains nothing.
constexpr double kLargestMergedShare = 0.5;

std::int64_t InputBytes(const PrefillPlan& plan) {
  return 2 * plan.k_bytes + plan.u_bytes + plan.g_bytes + plan.initial_state_bytes + plan.auxiliary_bytes;
}

std::int64_t StatesBytes(const PrefillPlan& plan) {
  return plan.sequence_count() * StateBytes(plan, kernels::DataType::kFloat32);
}

/// 1 for as much as `limits` allow.
double Share(const WorkLimits& limits, const PrefillRequest& request, const PrefillPlan& plan) {
  const auto touched = static_cast<double>(InputBytes(plan)) + static_cast<double>(plan.output_bytes()) +
                       2.0 * static_cast<double>(StatesBytes(plan));
  return std::max({plan.flops() / limits.flops, static_cast<double>(HostBytes(request, plan)) / limits.copied_bytes,
                   touched / limits.touched_bytes});
}

double MergedShare(const Environment& environment, const PrefillRequest& request, const PrefillPlan& plan) {
  return Share(environment.device_staging == nullptr ? kUnifiedMerge : kDeviceMerge, request, plan);
}

Executor::Here WhereToRun(const Environment& environment, const PrefillRequest& request, const PrefillPlan& plan) {
  const bool is_unified = environment.device_staging == nullptr;
  if (is_unified && Share(kTiny, request, plan) <= 1.0) return Executor::Here::kAlways;
  if (Share(is_unified ? kUnifiedSmall : kDeviceSmall, request, plan) <= 1.0) return Executor::Here::kWhenIdle;
  return Executor::Here::kNever;
}

bool SameShape(const kernels::RecurrenceShape& a, const kernels::RecurrenceShape& b) {
  const auto values = [](const kernels::RecurrenceShape& shape) {
    return std::tie(shape.heads, shape.key_dim, shape.value_dim, shape.num_householder, shape.chunk_size,
                    shape.input_dtype, shape.precision);
  };
  return values(a) == values(b);
}

}  // namespace

absl::StatusOr<std::shared_ptr<UnaryPrefill>> UnaryPrefill::Create(const Environment& environment, CallContext context,
                                                                   const PrefillRequest& request, PrefillDone done) {
  absl::StatusOr<PrefillPlan> plan = PlanPrefill(request, context.session->cache()->geometry());
  if (!plan.ok()) return plan.status();
  if (absl::Status status = CheckDestinations(request, *plan); !status.ok()) return status;
  // Inputs are in memory already, so their sum is small; results of the answer may be any size.
  const std::int64_t limit = environment.options.max_unary_output_bytes;
  const auto exceeds = [limit](const RegionPlace& place, std::int64_t bytes) {
    return place.region == nullptr && bytes > limit;
  };
  if (exceeds(request.outputs.h, plan->h_bytes) || exceeds(request.outputs.v_new, plan->v_new_bytes) ||
      exceeds(request.outputs.final_state, plan->final_state_bytes) || InlineOutputBytes(request, *plan) > limit) {
    return absl::ResourceExhaustedError(absl::StrCat("the results take ", plan->h_bytes, " bytes of h, ",
                                                     plan->v_new_bytes, " of v_new and ", plan->final_state_bytes,
                                                     " of final_state; a unary answer may have ", limit,
                                                     ": call PrefillStream or put them into shared memory"));
  }
  // Before memory is taken for it.
  if (absl::Status status = environment.admission.Check(context.session->key(), cache::SteadyNow()); !status.ok()) {
    return status;
  }
  const std::int64_t scratch =
      StagingPool::BlockSize(plan->natural_decay ? plan->g_bytes : 0) + StagingPool::BlockSize(plan->auxiliary_bytes);
  absl::StatusOr<std::shared_ptr<StagingAccount>> staging = environment.staging.Open(
      InlineInputBytes(request, *plan) + InlineOutputBytes(request, *plan) + scratch, StagingShare(context));
  if (!staging.ok()) return staging.status();
  absl::StatusOr<std::shared_ptr<StagingAccount>> device_staging =
      OpenDeviceAccount(environment, context, 1, HostBytes(request, *plan), 0);
  if (!device_staging.ok()) return device_staging.status();
  return std::shared_ptr<UnaryPrefill>(new UnaryPrefill(environment, std::move(context), request, *std::move(plan),
                                                        *std::move(staging), *std::move(device_staging),
                                                        std::move(done)));
}

UnaryPrefill::UnaryPrefill(const Environment& environment, CallContext context, const PrefillRequest& request,
                           PrefillPlan plan, std::shared_ptr<StagingAccount> staging,
                           std::shared_ptr<StagingAccount> device_staging, PrefillDone done)
    : OneStepCall(environment, std::move(context)),
      plan_(std::move(plan)),
      memory_(MemoryOf(request)),
      auxiliary_(static_cast<const std::byte*>(DataOf(request.auxiliary_state))),
      ready_event_(request.ready_event),
      done_event_(request.done_event),
      done_flag_(FlagOf(request)),
      done_value_(request.done_flag.value),
      regions_(request.regions),
      has_snapshots_(!request.snapshots.empty()),
      share_(MergedShare(environment, request, plan_)),
      launch_alone_(HostBytes(request, plan_) == 0 && EndsOnDevice() &&
                    plan_.sequence_count() + std::ssize(plan_.selected) <= kShortLaunch),
      here_(WhereToRun(environment, request, plan_)),
      staging_(std::move(staging)),
      device_staging_(std::move(device_staging)),
      done_(std::move(done)),
      created_(cache::SteadyNow()) {}

void UnaryPrefill::Prepare() {
  if (ready_event_ == nullptr || environment().backend.memory_sharing()->HasHappened(ready_event_->data())) {
    return Prepared(absl::OkStatus());
  }
  environment().poller.Watch(
      [self = std::static_pointer_cast<UnaryPrefill>(shared_from_this())] { return self->LookForInputs(); },
      context().session->key());
}

bool UnaryPrefill::LookForInputs() {
  bool are_there = false;
  {
    const std::lock_guard lock(mutex());
    if (EndedLocked().has_value()) return true;  // and the event may be gone
    are_there = environment().backend.memory_sharing()->HasHappened(ready_event_->data());
  }
  if (are_there) {
    Prepared(absl::OkStatus(), launch_alone_);
    return true;
  }
  const absl::Duration limit = environment().options.max_ready_wait;
  if (cache::SteadyNow() - created_ < limit) return false;
  Prepared(
      absl::DeadlineExceededError(absl::StrCat("ready_event has not happened within ", absl::FormatDuration(limit))));
  return true;
}

absl::StatusOr<Places> UnaryPrefill::Arrive() { return TakeSlots(plan_, context(), cache()); }

Executor::Here UnaryPrefill::MayRunHere() const {
  // What is only launched keeps no thread, whatever it has to wait for; where it would, it may as well find company.
  if (launch_alone_) return environment().executor.HasStream() ? Executor::Here::kAlways : Executor::Here::kNever;
  return ComesBehindWork() ? Executor::Here::kNever : here_;
}

bool UnaryPrefill::EndsOnDevice() const {
  const auto ends = [](const void* result, bool on_device) { return result == nullptr || on_device; };
  // Without a device of its own the backend has no work that goes on behind the host.
  const bool is_told =
      done_event_ != nullptr || (done_flag_ != nullptr && environment().backend.memory_sharing() != nullptr);
  return is_told && IsMergeable() && ends(memory_.h, memory_.on_device.h) &&
         ends(memory_.v_new, memory_.on_device.v_new) && ends(memory_.final_state, memory_.on_device.final_state);
}

bool UnaryPrefill::IsMergeable() const {
  if (plan_.check_finite || plan_.has_auxiliary_state || has_snapshots_) return false;
  if (plan_.natural_decay && memory_.on_device.g) return false;  // has to come to the host first
  // What ends on the device keeps no worker, even without company.
  return share_ <= kLargestMergedShare || done_event_ != nullptr || done_flag_ != nullptr;
}

MergeableTask* UnaryPrefill::AsMergeable(Executor::Here here) {
  if (!IsMergeable() || (here == Executor::Here::kAlways && !launch_alone_)) return nullptr;
  return this;
}

bool UnaryPrefill::MergesWith(const MergeableTask& other) const {
  const auto* const prefill = dynamic_cast<const UnaryPrefill*>(&other);
  return prefill != nullptr && &prefill->cache() == &cache() && SameShape(prefill->plan_.shape, plan_.shape);
}

absl::AnyInvocable<void()> UnaryPrefill::RunMerged(absl::Span<const std::shared_ptr<MergeableTask>> tasks,
                                                   kernels::Stream& stream) {
  std::vector<UnaryPrefill*> calls;
  calls.reserve(tasks.size());
  for (const std::shared_ptr<MergeableTask>& task : tasks) calls.push_back(static_cast<UnaryPrefill*>(task.get()));
  return RunPrefillBatch(environment(), calls, stream);
}

absl::Status UnaryPrefill::Execute(kernels::Stream& stream) {
  kernels::Backend& backend = environment().backend;
  const absl::Time started = cache::SteadyNow();
  result_.timing.queue_us = absl::ToInt64Microseconds(started - created_);
  if (absl::Status status = CheckPositions(plan_, cache()); !status.ok()) return status;

  const Segment segment = WholeCall(plan_);
  SegmentMemory memory = memory_;
  StagingBuffer g;
  if (plan_.natural_decay && plan_.g_bytes > 0) {
    absl::StatusOr<StagingBuffer> buffer = staging_->Acquire(plan_.g_bytes);
    if (!buffer.ok()) return buffer.status();
    g = *std::move(buffer);
    if (absl::Status status = ConvertDecay(memory, reinterpret_cast<float*>(g.data()), stream); !status.ok()) {
      return status;
    }
  }
  StagingBuffer backup;
  if (plan_.has_auxiliary_state) {
    absl::StatusOr<StagingBuffer> buffer = staging_->Acquire(plan_.auxiliary_bytes);
    if (!buffer.ok()) return buffer.status();
    backup = *std::move(buffer);
  }

  PrefillSnapshots snapshots;  // before the segment, whose end waits until nothing is written any more
  absl::StatusOr<DeviceSegment> device = DeviceSegment::Upload(environment(), device_staging_.get(), plan_, segment,
                                                               memory, DeviceSegment::Copies::kInOrder, {}, stream);
  if (!device.ok()) return device.status();
  const SegmentMemory& reached = device->memory();
  Launch launch = DescribeSegment(plan_, segment, reached, [&](std::int64_t n, bool, bool) {
    return StatesInPlace(plan_, cache(), reached.initial_state, n);
  });
  if (plan_.check_finite) {
    if (absl::Status status = CheckFinite(backend, stream, plan_, segment, reached, launch); !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = snapshots.Begin(environment(), context(), plan_); !status.ok()) return status;
  snapshots.Join(plan_, segment, launch);
  const absl::Time staged = cache::SteadyNow();
  result_.timing.stage_in_us = absl::ToInt64Microseconds(staged - started);

  if (absl::Status status = BeginCommit(); !status.ok()) return status;
  const absl::Status committed =
      CommitPrefill(backend, stream, plan_, cache(), plan_.has_auxiliary_state ? auxiliary_ : nullptr, backup.data(),
                    [&]() -> absl::Status {
                      absl::Status status = snapshots.CopyAuxiliary(backend, plan_, stream);
                      if (status.ok()) status = backend.RunRecurrence(plan_.shape, launch.sequences, stream);
                      if (status.ok()) status = snapshots.CopyFinalStates(backend, plan_.shape, stream);
                      if (status.ok()) status = device->Download();
                      if (status.ok()) status = CompleteOnDevice(memory, segment, stream);
                      return status;
                    });
  if (!committed.ok()) return committed;
  result_.snapshots = snapshots.Commit();
  const absl::Time computed = cache::SteadyNow();
  result_.timing.compute_us = absl::ToInt64Microseconds(computed - staged);

  if (!memory.on_device.v_new) ZeroUnusedRows(plan_, segment, memory.v_new);
  CompleteOnHost();
  result_.positions = Positions(plan_, cache());
  const absl::Time ended = cache::SteadyNow();
  result_.timing.stage_out_us = absl::ToInt64Microseconds(ended - computed);
  result_.timing.total_us = absl::ToInt64Microseconds(ended - created_);
  return absl::OkStatus();
}

absl::Status UnaryPrefill::ConvertDecay(SegmentMemory& memory, float* converted, kernels::Stream& stream) const {
  kernels::Backend& backend = environment().backend;
  const std::int64_t elements = plan_.used_rows() * plan_.shape.heads;
  if (memory.on_device.g) {
    const kernels::ByteCopy copy = {converted, memory.g, static_cast<std::size_t>(elements) * sizeof(float)};
    absl::Status status = backend.CopyBytes({&copy, 1}, stream);
    if (status.ok()) status = backend.Synchronize(stream);
    if (!status.ok()) return status;
    memory.g = converted;
    memory.on_device.g = false;
  }
  NaturalToLog2(memory.g, converted, elements);
  memory.g = converted;
  return absl::OkStatus();
}

absl::Status UnaryPrefill::CompleteOnDevice(const SegmentMemory& memory, const Segment& segment,
                                            kernels::Stream& stream) {
  kernels::Backend& backend = environment().backend;
  absl::Status status;
  if (memory.on_device.v_new) {
    const kernels::ByteRange unused = UnusedRows(plan_, segment, memory.v_new);
    if (unused.size > 0) status = backend.ZeroBytes({&unused, 1}, stream);
  }
  if (status.ok() && done_event_ != nullptr) {
    status = backend.memory_sharing()->RecordEvent(done_event_->data(), stream);
  }
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat("results cannot be completed on the device: ", status.message()));
  }
  if (done_flag_ != nullptr && EndsOnDevice()) {
    device_sets_flag_ = backend.memory_sharing()->WriteValue(done_flag_, done_value_, stream).ok();
  }
  return absl::OkStatus();
}

void UnaryPrefill::CompleteOnHost() {
  if (done_flag_ == nullptr || device_sets_flag_) return;
  std::atomic_ref(*done_flag_).store(done_value_, std::memory_order_release);
}

void UnaryPrefill::Answer() { std::exchange(done_, nullptr)(result_); }

void UnaryPrefill::Finish(absl::Status status) {
  if (done_ == nullptr) return;  // answered early: an error now is the device's loss, which ends the server
  if (status.ok()) return Answer();
  std::exchange(done_, nullptr)(std::move(status));
}

}  // namespace gdpcache::engine
