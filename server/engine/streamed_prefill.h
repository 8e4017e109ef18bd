#ifndef GDPCACHE_SERVER_ENGINE_STREAMED_PREFILL_H_
#define GDPCACHE_SERVER_ENGINE_STREAMED_PREFILL_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/device_segment.h"
#include "server/engine/input_cursor.h"
#include "server/engine/ordered_call.h"
#include "server/engine/prefill_plan.h"
#include "server/engine/prefill_request.h"
#include "server/engine/prefill_result.h"
#include "server/engine/prefill_snapshots.h"
#include "server/engine/segment.h"
#include "server/engine/streaming.h"

namespace gdpcache::engine {

/// A prefill whose tensors arrive in frames and whose results leave while they do.
///
/// The rows are cut into segments; each is computed when all its rows are there, in order, and its memory goes back as
/// soon as it is computed (inputs) or sent (results). Until the end the running states live in float32 scratch rows, so
/// the slots change in one step, after the caller has sent everything. A call that fits into one segment, or whose
/// scratch would be larger than its tensors, is computed in place, in one step, at the end.
class StreamedPrefill final : public OrderedCall, public StreamedInput, public StreamedOutput {
 public:
  /// Validates and reserves; see Engine::PrefillStream.
  static absl::StatusOr<std::shared_ptr<StreamedPrefill>> Create(const Environment& environment, CallContext context,
                                                                 const PrefillRequest& request, StreamPeer& peer,
                                                                 PrefillDone done);

  const PrefillPlan& plan() const { return plan_; }

  absl::StatusOr<absl::Span<std::byte>> Place(StreamTensor tensor, std::uint64_t offset, std::uint64_t size) override;
  void Placed(std::size_t size) override;
  void EndOfInput() override;
  bool WantsInput() override;
  void OutputSent(std::int64_t bytes) override;

 private:
  static constexpr int kOperands = 4;  // k, w, u, g

  /// A segment and the rows of it that have arrived.
  struct Stage {
    Segment segment;
    std::array<StagingBuffer, kOperands> operands;  // each allocated when its first row comes
    std::int64_t missing = 0;                       // bytes yet to come
    std::int64_t buffered = 0;                      // sizes of the operands
  };

  /// One of the results of a segment; `offset` is where it begins in its tensor.
  struct Result {
    StreamTensor tensor;
    std::int64_t offset;
    std::shared_ptr<StagingBuffer> buffer;
  };

  /// A segment whose inputs are on their way to where the arithmetic reaches them.
  struct Computation {
    std::shared_ptr<Stage> stage;
    std::array<Result, 3> results;
    DeviceSegment device;
    Launch launch;
  };

  /// One of k, w, u, g on its way in.
  struct Operand {
    InputCursor cursor;
    std::int64_t row_bytes = 0;
    std::int64_t stage = 0;   // number of the segment that the next byte belongs to
    std::int64_t filled = 0;  // bytes of it that have arrived
  };

  StreamedPrefill(const Environment& environment, CallContext context, PrefillPlan plan, bool in_place,
                  std::shared_ptr<StagingAccount> staging, std::shared_ptr<StagingAccount> device_staging,
                  StreamPeer& peer, PrefillDone done);

  absl::Status AllocateWhole();  // what lives as long as the call

  absl::StatusOr<Places> Arrive() override;
  bool HasStep() const override;
  absl::StatusOr<bool> RunStep(kernels::Stream& stream) override;
  void LetGo() override;
  void Finish(absl::Status status) override;

  // With the mutex held.
  Stage* FindStage(std::int64_t number);  // cuts segments up to this one; only for one that there is
  void CutNext();
  bool NextIsComplete() const;
  bool HasNextSegment() const;
  absl::StatusOr<absl::Span<std::byte>> PlaceRows(int operand, std::uint64_t size);
  absl::StatusOr<absl::Span<std::byte>> PlaceLocked(StreamTensor tensor, std::uint64_t offset, std::uint64_t size);
  bool HasEnoughInput() const;

  /// Copies of the initial states of the sequences that begin in the segment into their scratch rows, where the
  /// arithmetic starts from; none where they have arrived right there.
  std::vector<kernels::ByteCopy> InitialStates(const Segment& segment) const;

  /// Puts the inputs of the first stage on their way and checks them; queues the arithmetic and the results' way back,
  /// which takes the stage off the list unless the call is computed in place; waits and hands on the results.
  absl::StatusOr<Computation> BeginSegment(kernels::Stream& stream, std::shared_ptr<Stage> stage);
  absl::Status Compute(kernels::Stream& stream, Computation& computation);
  absl::Status Complete(kernels::Stream& stream, Computation& computation);
  void Deliver(Computation& computation);

  absl::Status ComputeInPlace(kernels::Stream& stream, std::shared_ptr<Stage> stage);
  absl::Status Commit(kernels::Stream& stream);
  absl::Status CommitStates(kernels::Stream& stream, absl::FunctionRef<absl::Status()> write_states);
  std::byte* ScratchRow(std::int64_t row) const;
  /// Where a sequence's running state is before and after the segment that is being computed.
  SequenceStates ScratchStates(std::int64_t n, bool begins, bool ends) const;

  const PrefillPlan plan_;
  const bool in_place_;
  std::shared_ptr<StagingAccount> staging_;
  std::shared_ptr<StagingAccount> device_staging_;
  StreamPeer& peer_;
  PrefillDone done_;
  const absl::Time created_;

  // Fixed before Start; what they point to is freed in LetGo. Shared, as are the stages: Place's caller may still be
  // writing when the call ends.
  std::shared_ptr<StagingBuffer> scratch_;         // [rows, H, K, V] float32, where the arithmetic reaches it
  std::shared_ptr<StagingBuffer> initial_states_;  // [N, H, K, V] float32; scratch_ itself if the host reaches that
  std::shared_ptr<StagingBuffer> auxiliary_;       // [N, auxiliary_bytes]
  std::shared_ptr<StagingBuffer> discard_;         // takes rows that belong to no sequence
  std::vector<std::int64_t> scratch_rows_;         // by sequence; -1: one of the two that take turns
  std::int64_t turn_rows_ = -1;                    // first of these two

  // Of the steps, one at a time.
  bool begun_ = false;
  std::int64_t computed_ = 0;  // segments
  absl::Time step_mark_;       // up to which the timing has been told of the step
  PrefillSnapshots snapshots_;
  PrefillResult result_;

  // Guarded by mutex().
  SegmentCutter cutter_;
  std::deque<std::shared_ptr<Stage>> stages_;  // those not computed yet; the first one's operands are the step's
  std::int64_t buffered_ = 0;                  // bytes of their operands
  std::int64_t first_stage_ = 0;               // number of the first
  std::array<Operand, kOperands> operands_;
  InputCursor initial_state_;
  InputCursor auxiliary_state_;
  bool input_ended_ = false;
  bool input_paused_ = false;
  int under_way_ = 0;        // segments off the list whose results are not there yet
  std::int64_t unsent_ = 0;  // bytes of results, of those under way too
  std::optional<absl::Time> received_;
  int placing_operand_ = -1;
  InputCursor* placing_ = nullptr;
  std::shared_ptr<void> placing_in_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_STREAMED_PREFILL_H_
