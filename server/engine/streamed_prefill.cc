#include "server/engine/streamed_prefill.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache/clock.h"
#include "server/cache/errors.h"
#include "server/engine/prefill_steps.h"

namespace gdpcache::engine {
namespace {

using cache::InvalidField;

// Complete segments that may wait while one is computed before the call stops taking input.
constexpr std::int64_t kWaitingSegments = 2;

// What a call whose tensors come in step needs: the inputs of the segment being computed, of those that wait and of the
// one that is filling, and the results of two; each segment's inputs and results together make up one share.
constexpr std::int64_t kReservedSegments = kWaitingSegments + 3;

// On a device, one segment's copies run beside the arithmetic of the other.
constexpr int kDeviceSegments = 2;
constexpr int kMaxSegmentsInAStep = 8;  // then other calls have their turn

/// Size of the place for rows that belong to no sequence.
std::int64_t DiscardBytes(const PrefillPlan& plan) { return plan.used_rows() < plan.rows ? std::int64_t{64} << 10 : 0; }

std::int64_t TensorBytes(const PrefillPlan& plan) {
  return 2 * plan.k_bytes + plan.u_bytes + plan.g_bytes + plan.output_bytes();
}

/// Whether a sum of the call's sizes may not even be formed.
bool ExceedsAnything(const PrefillPlan& plan) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 58;
  return plan.k_bytes > kHuge || plan.u_bytes > kHuge || plan.g_bytes > kHuge || plan.h_bytes > kHuge ||
         plan.v_new_bytes > kHuge || plan.final_state_bytes > kHuge;
}

/// float32 states that the call keeps until its commit when it is not computed in place.
std::int64_t ScratchRows(const PrefillPlan& plan) {
  if (plan.initial_state_source == InitialStateSource::kTensor) return plan.sequence_count();
  const std::int64_t slots = std::count_if(plan.sequences.begin(), plan.sequences.end(),
                                           [](const SequencePlan& sequence) { return sequence.slot >= 0; });
  return slots == plan.sequence_count() ? slots : slots + 2;
}

}  // namespace

absl::StatusOr<std::shared_ptr<StreamedPrefill>> StreamedPrefill::Create(const Environment& environment,
                                                                         CallContext context,
                                                                         const PrefillRequest& request,
                                                                         StreamPeer& peer, PrefillDone done) {
  absl::StatusOr<PrefillPlan> planned = PlanPrefill(request, context.session->cache()->geometry());
  if (!planned.ok()) return planned.status();
  const PrefillPlan& plan = *planned;
  // Before memory is taken for it.
  if (absl::Status status = environment.admission.Check(context.session->key(), cache::SteadyNow()); !status.ok()) {
    return status;
  }
  const std::int64_t state = StateBytes(plan, kernels::DataType::kFloat32);
  const std::int64_t scratch = ScratchRows(plan) * state;
  const std::int64_t target = environment.options.segment_bytes;
  const bool bounded = !ExceedsAnything(plan);
  const bool in_place = bounded && (TensorBytes(plan) <= target || TensorBytes(plan) <= scratch);
  const std::int64_t most_of_a_segment = in_place ? 0 : SegmentCutter(plan, target).MaxSegmentBytes();

  std::int64_t reserve = 2 * StagingPool::BlockSize(plan.auxiliary_bytes) + StagingPool::BlockSize(DiscardBytes(plan));
  const bool unified = environment.device_staging == nullptr;
  if (in_place || !unified) reserve += StagingPool::BlockSize(plan.initial_state_bytes);
  if (in_place) {
    for (const std::int64_t bytes : {plan.k_bytes, plan.k_bytes, plan.u_bytes, plan.g_bytes, plan.h_bytes,
                                     plan.v_new_bytes, plan.final_state_bytes}) {
      reserve += StagingPool::BlockSize(bytes);
    }
  } else {
    const std::int64_t segments = kReservedSegments + (unified ? 0 : kDeviceSegments - 1);
    reserve += segments * StagingPool::BlockSize(most_of_a_segment);
    if (unified) reserve += StagingPool::BlockSize(scratch);
  }
  absl::StatusOr<std::shared_ptr<StagingAccount>> staging = environment.staging.Open(reserve, StagingShare(context));
  if (!staging.ok()) return staging.status();
  absl::StatusOr<std::shared_ptr<StagingAccount>> device_staging =
      in_place ? OpenDeviceAccount(environment, context, 1, TensorBytes(plan) + plan.initial_state_bytes, 0)
               : OpenDeviceAccount(environment, context, kDeviceSegments, most_of_a_segment, scratch);
  if (!device_staging.ok()) return device_staging.status();
  std::shared_ptr<StreamedPrefill> call(new StreamedPrefill(environment, std::move(context), *std::move(planned),
                                                            in_place, *std::move(staging), *std::move(device_staging),
                                                            peer, std::move(done)));
  if (absl::Status status = call->AllocateWhole(); !status.ok()) return status;
  return call;
}

StreamedPrefill::StreamedPrefill(const Environment& environment, CallContext context, PrefillPlan plan, bool in_place,
                                 std::shared_ptr<StagingAccount> staging,
                                 std::shared_ptr<StagingAccount> device_staging, StreamPeer& peer, PrefillDone done)
    : OrderedCall(environment, std::move(context)),
      plan_(std::move(plan)),
      in_place_(in_place),
      staging_(std::move(staging)),
      device_staging_(std::move(device_staging)),
      peer_(peer),
      done_(std::move(done)),
      created_(cache::SteadyNow()),
      cutter_(plan_, environment.options.segment_bytes),
      initial_state_{.name = "initial_state", .size = plan_.initial_state_bytes},
      auxiliary_state_{.name = "auxiliary_state", .size = plan_.auxiliary_bytes} {
  const std::int64_t g_row = plan_.has_g ? plan_.shape.heads * std::int64_t{sizeof(float)} : 0;
  operands_ = {Operand{{.name = "k", .size = plan_.k_bytes}, KeyRowBytes(plan_)},
               Operand{{.name = "w", .size = plan_.k_bytes}, KeyRowBytes(plan_)},
               Operand{{.name = "u", .size = plan_.u_bytes}, ValueRowBytes(plan_)},
               Operand{{.name = "g", .size = plan_.g_bytes}, g_row}};
  CutNext();
}

absl::Status StreamedPrefill::AllocateWhole() {
  const auto acquire = [](StagingAccount& account, std::int64_t size, std::shared_ptr<StagingBuffer>& into) {
    absl::StatusOr<StagingBuffer> buffer = account.Acquire(size);
    if (!buffer.ok()) return buffer.status();
    into = std::make_shared<StagingBuffer>(*std::move(buffer));
    return absl::OkStatus();
  };
  const bool tensor = plan_.initial_state_source == InitialStateSource::kTensor;
  if (!in_place_) {
    std::int64_t rows = 0;
    scratch_rows_.reserve(plan_.sequences.size());
    for (const SequencePlan& sequence : plan_.sequences) {
      scratch_rows_.push_back(tensor || sequence.slot >= 0 ? rows++ : -1);
    }
    turn_rows_ = rows;
    StagingAccount& account = device_staging_ == nullptr ? *staging_ : *device_staging_;
    const std::int64_t bytes = ScratchRows(plan_) * StateBytes(plan_, kernels::DataType::kFloat32);
    if (absl::Status status = acquire(account, bytes, scratch_); !status.ok()) return status;
  }
  if (tensor && !in_place_ && device_staging_ == nullptr) {
    initial_states_ = scratch_;  // row n is where sequence n starts
  } else if (absl::Status status = acquire(*staging_, plan_.initial_state_bytes, initial_states_); !status.ok()) {
    return status;
  }
  if (absl::Status status = acquire(*staging_, plan_.auxiliary_bytes, auxiliary_); !status.ok()) return status;
  return acquire(*staging_, DiscardBytes(plan_), discard_);
}

absl::StatusOr<Places> StreamedPrefill::Arrive() { return TakeSlots(plan_, context(), cache()); }

void StreamedPrefill::CutNext() {
  auto stage = std::make_shared<Stage>();
  if (in_place_) {
    stage->segment = WholeCall(plan_);
  } else {
    stage->segment = cutter_.Next();
  }
  for (const Operand& operand : operands_) stage->missing += stage->segment.rows() * operand.row_bytes;
  stages_.push_back(std::move(stage));
}

StreamedPrefill::Stage* StreamedPrefill::FindStage(std::int64_t number) {
  while (number - first_stage_ >= static_cast<std::int64_t>(stages_.size())) CutNext();
  return stages_[number - first_stage_].get();
}

absl::StatusOr<absl::Span<std::byte>> StreamedPrefill::Place(StreamTensor tensor, std::uint64_t offset,
                                                             std::uint64_t size) {
  Lock lock(mutex());
  placing_in_.reset();
  placing_ = nullptr;
  if (const std::optional<absl::Status> ended = EndedLocked(); ended.has_value()) return *ended;
  absl::StatusOr<absl::Span<std::byte>> place = PlaceLocked(tensor, offset, size);
  if (!place.ok()) FailLocked(std::move(lock), place.status());
  return place;
}

absl::StatusOr<absl::Span<std::byte>> StreamedPrefill::PlaceLocked(StreamTensor tensor, std::uint64_t offset,
                                                                   std::uint64_t size) {
  const auto whole = [&](InputCursor& cursor,
                         const std::shared_ptr<StagingBuffer>& buffer) -> absl::StatusOr<absl::Span<std::byte>> {
    if (absl::Status status = cursor.CheckFrame(offset, size); !status.ok()) return status;
    placing_ = &cursor;
    placing_in_ = buffer;
    return absl::MakeSpan(buffer->data() + cursor.received, size);
  };
  const auto rows = [&](int operand) -> absl::StatusOr<absl::Span<std::byte>> {
    if (absl::Status status = operands_[operand].cursor.CheckFrame(offset, size); !status.ok()) return status;
    placing_ = &operands_[operand].cursor;
    return PlaceRows(operand, size);
  };
  switch (tensor) {
    case StreamTensor::kK:
      return rows(0);
    case StreamTensor::kW:
      return rows(1);
    case StreamTensor::kU:
      return rows(2);
    case StreamTensor::kG:
      if (!plan_.has_g) break;
      return rows(3);
    case StreamTensor::kInitialState:
      if (plan_.initial_state_source != InitialStateSource::kTensor) break;
      return whole(initial_state_, initial_states_);
    case StreamTensor::kAuxiliary:
      if (!plan_.has_auxiliary_state) break;
      return whole(auxiliary_state_, auxiliary_);
    case StreamTensor::kState:
    case StreamTensor::kH:
    case StreamTensor::kVNew:
    case StreamTensor::kFinalState:
      break;
  }
  return InvalidField("data.tensor", "names a tensor that is not in the header");
}

absl::StatusOr<absl::Span<std::byte>> StreamedPrefill::PlaceRows(int operand, std::uint64_t size) {
  if (size == 0) return absl::Span<std::byte>();
  Operand& at = operands_[operand];
  // Segments without rows, of empty sequences only, are computed without any operand having been there.
  at.stage = std::max(at.stage, first_stage_);
  Stage* stage = FindStage(at.stage);
  while (stage->segment.rows() == 0) stage = FindStage(++at.stage);
  const std::int64_t bytes = stage->segment.rows() * at.row_bytes;
  const std::int64_t room = std::min<std::int64_t>(bytes - at.filled, static_cast<std::int64_t>(size));
  placing_operand_ = operand;
  if (stage->segment.row_begin >= plan_.used_rows()) {
    placing_in_ = discard_;
    return absl::MakeSpan(discard_->data(), std::min(room, discard_->size()));
  }
  StagingBuffer& buffer = stage->operands[operand];
  if (buffer.size() == 0) {
    const std::int64_t most = environment().options.max_call_input_bytes();
    const std::int64_t waiting = buffered_ + bytes;
    if (stages_.size() > kReservedSegments && waiting > most) {
      return absl::ResourceExhaustedError(absl::StrCat(
          at.cursor.name, " is ", at.cursor.received, " bytes in and ahead of tensors that belong to the same rows; ",
          waiting, " bytes would wait for them and a call may keep ", most, ": interleave the tensors by token"));
    }
    absl::StatusOr<StagingBuffer> acquired = staging_->Acquire(bytes);
    if (!acquired.ok()) return acquired.status();
    buffer = *std::move(acquired);
    stage->buffered += bytes;
    buffered_ += bytes;
  }
  placing_in_ = stages_[at.stage - first_stage_];
  return absl::MakeSpan(buffer.data() + at.filled, room);
}

void StreamedPrefill::Placed(std::size_t size) {
  Lock lock(mutex());
  placing_in_.reset();
  if (EndedLocked().has_value() || size == 0) return;
  const auto bytes = static_cast<std::int64_t>(size);
  placing_->received += bytes;
  if (placing_ != &initial_state_ && placing_ != &auxiliary_state_) {
    Operand& operand = operands_[placing_operand_];
    Stage* stage = FindStage(operand.stage);
    operand.filled += bytes;
    stage->missing -= bytes;
    if (operand.filled == stage->segment.rows() * operand.row_bytes) {
      ++operand.stage;
      operand.filled = 0;
    }
  }
  AdvanceLocked(std::move(lock));
}

void StreamedPrefill::EndOfInput() {
  Lock lock(mutex());
  placing_in_.reset();
  input_ended_ = true;
  received_ = cache::SteadyNow();
  for (const Operand& operand : operands_) {
    if (absl::Status status = operand.cursor.CheckComplete(); !status.ok()) {
      return FailLocked(std::move(lock), std::move(status));
    }
  }
  for (const InputCursor* cursor : {&initial_state_, &auxiliary_state_}) {
    if (absl::Status status = cursor->CheckComplete(); !status.ok()) {
      return FailLocked(std::move(lock), std::move(status));
    }
  }
  AdvanceLocked(std::move(lock));
}

bool StreamedPrefill::NextIsComplete() const {
  const Stage& next = *stages_.front();
  if (next.missing > 0) return false;
  const std::int64_t state = StateBytes(plan_, kernels::DataType::kFloat32);
  return initial_state_.complete() || initial_state_.received >= next.segment.sequence_end * state;
}

bool StreamedPrefill::HasStep() const {
  if (in_place_) return input_ended_;
  if (stages_.empty()) return input_ended_;  // only the commit is left
  return HasNextSegment();
}

bool StreamedPrefill::HasNextSegment() const {
  return !stages_.empty() && NextIsComplete() && unsent_ < environment().options.segment_bytes;
}

bool StreamedPrefill::HasEnoughInput() const {
  if (in_place_ || EndedLocked().has_value()) return false;
  std::int64_t complete = under_way_;
  for (const std::shared_ptr<Stage>& stage : stages_) {
    if (stage->missing > 0) break;
    ++complete;
  }
  // More input may be just what the first needs, if it waits for its initial states.
  return complete > kWaitingSegments && (stages_.empty() || NextIsComplete());
}

bool StreamedPrefill::WantsInput() {
  const std::lock_guard lock(mutex());
  input_paused_ = HasEnoughInput();
  return !input_paused_;
}

void StreamedPrefill::OutputSent(std::int64_t bytes) {
  Lock lock(mutex());
  unsent_ -= bytes;
  AdvanceLocked(std::move(lock));
}

absl::StatusOr<bool> StreamedPrefill::RunStep(kernels::Stream& stream) {
  if (!begun_) {
    begun_ = true;
    result_.timing.queue_us = absl::ToInt64Microseconds(cache::SteadyNow() - created_);
    if (absl::Status status = CheckPositions(plan_, cache()); !status.ok()) return status;
    if (absl::Status status = snapshots_.Begin(environment(), context(), plan_); !status.ok()) return status;
  }
  step_mark_ = cache::SteadyNow();
  std::shared_ptr<Stage> stage;
  {
    const std::lock_guard lock(mutex());
    if (!stages_.empty()) stage = stages_.front();
  }
  if (stage == nullptr || in_place_) {
    if (absl::Status status = in_place_ ? ComputeInPlace(stream, stage) : Commit(stream); !status.ok()) return status;
    result_.snapshots = snapshots_.Commit();
    const absl::Time now = cache::SteadyNow();
    result_.positions = Positions(plan_, cache());
    result_.timing.total_us = absl::ToInt64Microseconds(now - created_);
    const std::lock_guard lock(mutex());
    result_.timing.stage_in_us = absl::ToInt64Microseconds(*received_ - created_);
    return true;
  }

  // Where copies run beside the arithmetic, the next segment sets out before the results of this one are waited for.
  std::optional<Computation> under_way;
  for (int number = 1; stage != nullptr; ++number) {
    absl::StatusOr<Computation> next = BeginSegment(stream, std::exchange(stage, nullptr));
    if (!next.ok()) return next.status();
    if (absl::Status status = Compute(stream, *next); !status.ok()) return status;
    ++computed_;
    if (under_way.has_value()) {
      if (absl::Status status = Complete(stream, *under_way); !status.ok()) return status;
    }
    under_way.emplace(*std::move(next));
    if (device_staging_ != nullptr && number < kMaxSegmentsInAStep) {
      const std::lock_guard lock(mutex());
      if (under_way_ < kDeviceSegments && !EndedLocked().has_value() && HasNextSegment()) stage = stages_.front();
    }
  }
  if (absl::Status status = Complete(stream, *under_way); !status.ok()) return status;
  return false;
}

std::byte* StreamedPrefill::ScratchRow(std::int64_t row) const {
  return scratch_->data() + row * StateBytes(plan_, kernels::DataType::kFloat32);
}

SequenceStates StreamedPrefill::ScratchStates(std::int64_t n, bool begins, bool ends) const {
  const std::int64_t head_stride = plan_.shape.key_dim * plan_.shape.value_dim;
  const auto view = [&](std::int64_t row) {
    return kernels::StateView{ScratchRow(row), kernels::DataType::kFloat32, head_stride};
  };
  const SequencePlan& sequence = plan_.sequences[n];
  const std::int64_t row = scratch_rows_[n];
  SequenceStates states;
  // A sequence without a row needs a place only from one segment to the next: the two rows for that take turns, so that
  // one launch never reads and writes the same.
  if (row >= 0 || !ends) states.destination = view(row >= 0 ? row : turn_rows_ + computed_ % 2);
  if (!begins) {
    states.initial = view(row >= 0 ? row : turn_rows_ + (computed_ + 1) % 2);
  } else if (plan_.initial_state_source == InitialStateSource::kTensor) {
    states.initial = view(row);
  } else if (plan_.initial_state_source == InitialStateSource::kSlot && sequence.slot >= 0) {
    states.initial = cache().pool().State(plan_.layer, sequence.slot);
  }
  return states;
}

std::vector<kernels::ByteCopy> StreamedPrefill::InitialStates(const Segment& segment) const {
  const bool tensor = plan_.initial_state_source == InitialStateSource::kTensor;
  if (!tensor || in_place_ || initial_states_ == scratch_ || segment.sequence_begin == segment.sequence_end) return {};
  const bool first_goes_on = plan_.sequences[segment.sequence_begin].begin < segment.row_begin;
  const std::int64_t first = segment.sequence_begin + (first_goes_on ? 1 : 0);
  const std::int64_t state = StateBytes(plan_, kernels::DataType::kFloat32);
  return {{ScratchRow(first), initial_states_->data() + first * state,
           static_cast<std::size_t>((segment.sequence_end - first) * state)}};
}

absl::StatusOr<StreamedPrefill::Computation> StreamedPrefill::BeginSegment(kernels::Stream& stream,
                                                                           std::shared_ptr<Stage> stage) {
  const Segment& segment = stage->segment;
  const std::int64_t h_state = StateBytes(plan_, plan_.states_dtype);
  const std::int64_t value_row = plan_.save_new_value ? ValueRowBytes(plan_) : 0;
  const std::int64_t final_state = plan_.output_final_state ? StateBytes(plan_, kernels::DataType::kFloat32) : 0;
  std::array<Result, 3> results = {Result{StreamTensor::kH, segment.h_begin * h_state, nullptr},
                                   Result{StreamTensor::kVNew, segment.row_begin * value_row, nullptr},
                                   Result{StreamTensor::kFinalState, segment.final_begin * final_state, nullptr}};
  const std::array<std::int64_t, 3> sizes = {(segment.h_end - segment.h_begin) * h_state, segment.rows() * value_row,
                                             (segment.final_end - segment.final_begin) * final_state};
  for (std::size_t i = 0; i < results.size(); ++i) {
    absl::StatusOr<StagingBuffer> buffer = staging_->Acquire(sizes[i]);
    if (!buffer.ok()) return buffer.status();
    results[i].buffer = std::make_shared<StagingBuffer>(*std::move(buffer));
  }

  auto* const g = reinterpret_cast<float*>(stage->operands[3].data());
  const std::int64_t used = std::min(segment.row_end, plan_.used_rows()) - segment.row_begin;
  if (plan_.natural_decay && g != nullptr && used > 0) NaturalToLog2(g, g, used * plan_.shape.heads);
  const SegmentMemory memory{
      .k = stage->operands[0].data(),
      .w = stage->operands[1].data(),
      .u = stage->operands[2].data(),
      .g = g,
      .initial_state = in_place_ ? reinterpret_cast<const float*>(initial_states_->data()) : nullptr,
      .h = results[0].buffer->data(),
      .v_new = results[1].buffer->data(),
      .final_state = results[2].buffer->data()};
  absl::StatusOr<DeviceSegment> device =
      DeviceSegment::Upload(environment(), device_staging_.get(), plan_, segment, memory,
                            in_place_ ? DeviceSegment::Copies::kInOrder : DeviceSegment::Copies::kBesideArithmetic,
                            InitialStates(segment), stream);
  if (!device.ok()) return device.status();
  Launch launch = DescribeSegment(plan_, segment, device->memory(), [&](std::int64_t n, bool begins, bool ends) {
    return in_place_ ? StatesInPlace(plan_, cache(), device->memory().initial_state, n)
                     : ScratchStates(n, begins, ends);
  });
  if (plan_.check_finite) {
    absl::Status status = CheckFinite(environment().backend, stream, plan_, segment, device->memory(), launch);
    if (!status.ok()) return status;
  }
  snapshots_.Join(plan_, segment, launch);
  return Computation{std::move(stage), std::move(results), *std::move(device), std::move(launch)};
}

absl::Status StreamedPrefill::Compute(kernels::Stream& stream, Computation& computation) {
  absl::Status status = environment().backend.RunRecurrence(plan_.shape, computation.launch.sequences, stream);
  if (status.ok()) status = snapshots_.CopyFinalStates(environment().backend, plan_.shape, stream);
  if (status.ok()) status = computation.device.Download();
  if (!status.ok() || in_place_) return status;
  const std::lock_guard lock(mutex());
  stages_.pop_front();
  ++first_stage_;
  ++under_way_;
  if (stages_.empty() && !cutter_.AtEnd()) CutNext();
  for (const Result& result : computation.results) unsent_ += result.buffer->size();
  return absl::OkStatus();
}

absl::Status StreamedPrefill::Complete(kernels::Stream& stream, Computation& computation) {
  absl::Status status =
      device_staging_ == nullptr ? environment().backend.Synchronize(stream) : computation.device.Wait();
  if (!status.ok()) return status;
  Deliver(computation);
  bool resume = false;
  {
    const std::lock_guard lock(mutex());
    --under_way_;
    buffered_ -= computation.stage->buffered;
    resume = std::exchange(input_paused_, input_paused_ && !stages_.empty() && HasEnoughInput()) && !input_paused_;
  }
  if (resume) peer_.InputWanted();
  return absl::OkStatus();
}

void StreamedPrefill::Deliver(Computation& computation) {
  Stage& stage = *computation.stage;
  ZeroUnusedRows(plan_, stage.segment, computation.results[1].buffer->data());
  for (StagingBuffer& operand : stage.operands) operand.Reset();
  const absl::Time computed = cache::SteadyNow();
  result_.timing.compute_us += absl::ToInt64Microseconds(computed - step_mark_);
  for (Result& result : computation.results) {
    if (result.buffer->size() == 0) continue;
    peer_.Output({result.tensor, result.offset, result.buffer->data(), result.buffer->size(), result.buffer});
  }
  step_mark_ = cache::SteadyNow();
  result_.timing.stage_out_us += absl::ToInt64Microseconds(step_mark_ - computed);
}

absl::Status StreamedPrefill::ComputeInPlace(kernels::Stream& stream, std::shared_ptr<Stage> stage) {
  absl::StatusOr<Computation> computation = BeginSegment(stream, std::move(stage));
  if (!computation.ok()) return computation.status();
  absl::Status status = CommitStates(stream, [&] { return Compute(stream, *computation); });
  if (!status.ok()) return status;
  {
    const std::lock_guard lock(mutex());
    for (const Result& result : computation->results) unsent_ += result.buffer->size();
  }
  Deliver(*computation);
  return absl::OkStatus();
}

absl::Status StreamedPrefill::CommitStates(kernels::Stream& stream, absl::FunctionRef<absl::Status()> write_states) {
  absl::StatusOr<StagingBuffer> backup = staging_->Acquire(plan_.auxiliary_bytes);
  if (!backup.ok()) return backup.status();
  if (absl::Status status = BeginCommit(); !status.ok()) return status;
  return CommitPrefill(environment().backend, stream, plan_, cache(),
                       plan_.has_auxiliary_state ? auxiliary_->data() : nullptr, backup->data(), [&] {
                         absl::Status status = snapshots_.CopyAuxiliary(environment().backend, plan_, stream);
                         return status.ok() ? write_states() : status;
                       });
}

absl::Status StreamedPrefill::Commit(kernels::Stream& stream) {
  const std::int64_t head_stride = plan_.shape.key_dim * plan_.shape.value_dim;
  std::vector<kernels::StateCopy> copies;
  for (std::int64_t n = 0; n < plan_.sequence_count(); ++n) {
    const SequencePlan& sequence = plan_.sequences[n];
    const bool untouched = plan_.initial_state_source == InitialStateSource::kSlot && sequence.length == 0;
    if (sequence.slot < 0 || untouched) continue;
    copies.push_back({cache().pool().State(plan_.layer, sequence.slot),
                      {ScratchRow(scratch_rows_[n]), kernels::DataType::kFloat32, head_stride}});
  }
  absl::Status status =
      CommitStates(stream, [&] { return environment().backend.CopyStates(plan_.shape, copies, stream); });
  result_.timing.compute_us += absl::ToInt64Microseconds(cache::SteadyNow() - step_mark_);
  return status;
}

void StreamedPrefill::LetGo() {
  snapshots_ = PrefillSnapshots();
  const std::lock_guard lock(mutex());
  stages_.clear();
  scratch_.reset();
  initial_states_.reset();
  auxiliary_.reset();
  discard_.reset();
  staging_->EndReservation();
  device_staging_.reset();
}

void StreamedPrefill::Finish(absl::Status status) { done_(ResultOr(std::move(status), std::move(result_))); }

}  // namespace gdpcache::engine
