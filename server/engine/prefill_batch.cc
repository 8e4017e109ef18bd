#include "server/engine/prefill_batch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/cache/clock.h"
#include "server/engine/prefill_steps.h"
#include "server/engine/segment.h"
#include "server/engine/staging_pool.h"

namespace gdpcache::engine {
namespace {

constexpr std::int64_t kAlignment = 256;

std::int64_t Aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

class PrefillBatch {
 public:
  PrefillBatch(const Environment& environment, absl::Span<UnaryPrefill* const> calls, kernels::Stream& stream)
      : environment_(environment), calls_(static_cast<std::int64_t>(calls.size())) {
    const bool all_end_on_device =
        std::all_of(calls.begin(), calls.end(), [](const UnaryPrefill* call) { return call->EndsOnDevice(); });
    if (all_end_on_device) own_stream_ = environment.executor.TakeStream(calls_, stream);
    stream_ = own_stream_ != nullptr ? own_stream_.get() : &stream;
  }

  void Run(absl::Span<UnaryPrefill* const> calls) {
    started_ = cache::SteadyNow();
    members_.reserve(calls.size());  // results point to them
    for (UnaryPrefill* call : calls) {
      call->result_.timing.queue_us = absl::ToInt64Microseconds(started_ - call->created_);
      members_.push_back(
          {.call = call, .owner = call->shared_from_this(), .status = CheckPositions(call->plan_, call->cache())});
      Member& member = members_.back();
      if (member.status.ok()) member.status = call->JoinEarlierCalls(*stream_);
      member.segment = WholeCall(call->plan_);
      member.host = call->memory_;
      member.reached = member.host;
    }
    const absl::Status staged = Stage();
    if (staged.ok()) {
      Commit();
    } else if (absl::IsResourceExhausted(staged)) {
      // There is no memory for all at once. What each takes it has reserved.
      ForEachActive([this](Member& member) { member.status = member.call->Execute(*stream_); });
    } else {
      FailAll(staged);
    }
    if (!IsUnderWay()) End();
  }

  /// Whether the work goes on, for calls that have handed their slots over.
  bool IsUnderWay() const { return launched_ != nullptr; }

  /// Whether it does not any more. True also when that cannot be found out, which is then the status of these calls.
  bool HasEnded() {
    const absl::StatusOr<bool> happened = environment_.backend.HasHappened(*launched_);
    if (happened.ok() && !*happened) return false;
    if (happened.ok()) {
      EndHandedOver();
    } else {
      FailHandedOver(happened.status());
    }
    launched_ = nullptr;
    End();
    return true;
  }

  /// Tells those whose work is not under way.
  void Tell() {
    for (Member& member : members_) {
      if (member.call == nullptr || (IsUnderWay() && member.handed_over)) continue;
      if (member.status.ok()) {
        member.call->StepDone(true);
      } else {
        member.call->StepDone(member.status);
      }
      member.call = nullptr;
      member.owner = nullptr;
    }
  }

 private:
  struct Member {
    UnaryPrefill* call = nullptr;        // nullptr once it has been told
    std::shared_ptr<OrderedCall> owner;  // of `call`
    absl::Status status;                 // an error: it takes no part any more
    bool handed_over = false;
    Segment segment = {};
    SegmentMemory host = {};     // as the call has it
    SegmentMemory reached = {};  // as the arithmetic reaches it
    Launch launch = {};
  };

  /// A result on its way from the block to where its call wants it.
  struct Result {
    const Member* member;
    void* to;
    std::int64_t offset;  // in the block
    std::int64_t bytes;
  };

  /// Whether nobody takes part any more.
  bool IsOver() const {
    return std::none_of(members_.begin(), members_.end(), [](const Member& member) { return member.status.ok(); });
  }

  void FailAll(const absl::Status& status) {
    for (Member& member : members_) member.status.Update(status);
  }

  /// Of those whose work has gone on, what is left to be done.
  void EndHandedOver() {
    const absl::Time computed = cache::SteadyNow();
    ForEachActive([&](Member& member) {
      if (!member.handed_over || member.call->IsAnsweredEarly()) return;
      UnaryPrefill& call = *member.call;
      call.CompleteOnHost();
      SetTiming(call.result_.timing, call.created_, staged_, computed);
    });
  }

  /// Their slots are others' by now, so nothing but the loss of the device could explain what these hold.
  void FailHandedOver(const absl::Status& status) {
    for (Member& member : members_) {
      if (member.handed_over) {
        member.status.Update(
            absl::UnavailableError(absl::StrCat("a prefill that was launched has failed: ", status.message())));
      }
    }
  }

  /// Whoever is told may rely on the memory being free.
  void End() {
    decays_.clear();
    host_block_.Reset();
    device_block_.Reset();
    if (own_stream_ != nullptr) environment_.executor.GiveBack(std::move(own_stream_), calls_);
  }

  /// Puts everything where the arithmetic reaches it.
  absl::Status Stage() {
    absl::Status status = environment_.device_staging == nullptr ? ConvertDecays() : StageOnDevice();
    if (!status.ok()) return status;
    for (Member& member : members_) {
      if (!member.status.ok()) continue;
      const UnaryPrefill& call = *member.call;
      member.launch = DescribeSegment(call.plan_, member.segment, member.reached, [&](std::int64_t n, bool, bool) {
        return StatesInPlace(call.plan_, call.cache(), member.reached.initial_state, n);
      });
    }
    return absl::OkStatus();
  }

  /// Where the arithmetic reaches host memory, natural logarithms are all that has to be copied.
  absl::Status ConvertDecays() {
    for (Member& member : members_) {
      const PrefillPlan& plan = member.call->plan_;
      if (!member.status.ok() || !plan.natural_decay || plan.g_bytes == 0) continue;
      absl::StatusOr<StagingBuffer> buffer = member.call->staging_->Acquire(plan.g_bytes);
      member.status = buffer.status();
      if (!buffer.ok()) continue;
      auto* const converted = reinterpret_cast<float*>(buffer->data());
      NaturalToLog2(member.host.g, converted, plan.used_rows() * plan.shape.heads);
      member.reached.g = converted;
      decays_.push_back(*std::move(buffer));
    }
    return absl::OkStatus();
  }

  /// Calls `visit(pointer, on_device, bytes, natural)` for each input of a member, `natural` telling whether it is
  /// decays to be converted.
  template <typename Visit>
  static void VisitInputs(Member& member, Visit visit) {
    const PrefillPlan& plan = member.call->plan_;
    SegmentMemory& memory = member.reached;
    const std::int64_t rows = plan.used_rows();
    visit(memory.k, memory.on_device.k, rows * KeyRowBytes(plan), false);
    visit(memory.w, memory.on_device.w, rows * KeyRowBytes(plan), false);
    visit(memory.u, memory.on_device.u, rows * ValueRowBytes(plan), false);
    visit(memory.g, memory.on_device.g, rows * plan.shape.heads * std::int64_t{sizeof(float)}, plan.natural_decay);
    visit(memory.initial_state, memory.on_device.initial_state, plan.initial_state_bytes, false);
  }

  /// The same for its results.
  template <typename Visit>
  static void VisitResults(Member& member, Visit visit) {
    const PrefillPlan& plan = member.call->plan_;
    SegmentMemory& memory = member.reached;
    visit(memory.h, memory.on_device.h, plan.h_bytes);
    visit(memory.v_new, memory.on_device.v_new, plan.used_rows() * ValueRowBytes(plan));
    visit(memory.final_state, memory.on_device.final_state, plan.final_state_bytes);
  }

  static bool Travels(const void* pointer, bool on_device, std::int64_t bytes) {
    return pointer != nullptr && !on_device && bytes > 0;
  }

  template <typename Visit>
  void ForEachActive(Visit visit) {
    for (Member& member : members_) {
      if (member.status.ok()) visit(member);
    }
  }

  /// Gathers all that is in host memory into one block and copies that at once; makes room for results.
  absl::Status StageOnDevice() {
    std::int64_t size = 0;
    ForEachActive([&size](Member& member) {
      VisitInputs(member, [&size](const void* pointer, bool on_device, std::int64_t bytes, bool /*natural*/) {
        if (Travels(pointer, on_device, bytes)) size += Aligned(bytes);
      });
    });
    results_begin_ = size;
    ForEachActive([&size](Member& member) {
      VisitResults(member, [&size](const void* pointer, bool on_device, std::int64_t bytes) {
        if (Travels(pointer, on_device, bytes)) size += Aligned(bytes);
      });
    });
    if (size == 0) return absl::OkStatus();
    if (absl::Status status = AcquireBlocks(size); !status.ok()) return status;

    std::int64_t offset = 0;
    ForEachActive([&](Member& member) {
      VisitInputs(member, [&](auto*& pointer, bool& on_device, std::int64_t bytes, bool natural) {
        if (!Travels(pointer, on_device, bytes)) return;
        std::byte* const copy = host_block_.data() + offset;
        if (natural) {
          NaturalToLog2(static_cast<const float*>(static_cast<const void*>(pointer)), reinterpret_cast<float*>(copy),
                        bytes / std::int64_t{sizeof(float)});
        } else {
          std::memcpy(copy, pointer, static_cast<std::size_t>(bytes));
        }
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(device_block_.data() + offset);
        on_device = true;
        offset += Aligned(bytes);
      });
    });
    ForEachActive([&](Member& member) {
      VisitResults(member, [&](void*& pointer, bool& on_device, std::int64_t bytes) {
        if (!Travels(pointer, on_device, bytes)) return;
        results_.push_back({&member, pointer, offset, bytes});
        pointer = device_block_.data() + offset;
        on_device = true;
        offset += Aligned(bytes);
      });
    });
    results_end_ = offset;
    if (results_begin_ == 0) return absl::OkStatus();
    const kernels::ByteCopy copy = {device_block_.data(), host_block_.data(), static_cast<std::size_t>(results_begin_)};
    return environment_.backend.CopyBytes({&copy, 1}, *stream_);
  }

  /// Beside what the calls have reserved for being run alone, which they then do not use.
  absl::Status AcquireBlocks(std::int64_t size) {
    for (auto [pool, block] :
         {std::pair(&environment_.staging, &host_block_), std::pair(environment_.device_staging, &device_block_)}) {
      absl::StatusOr<std::shared_ptr<StagingAccount>> account = pool->Open(StagingPool::BlockSize(size));
      if (!account.ok()) return account.status();
      absl::StatusOr<StagingBuffer> buffer = (*account)->Acquire(size);
      if (!buffer.ok()) return buffer.status();
      *block = *std::move(buffer);
    }
    return absl::OkStatus();
  }

  /// Launches what is left and completes it.
  void Commit() {
    staged_ = cache::SteadyNow();
    ForEachActive([](Member& member) { member.status = member.call->BeginCommit(); });
    // Nobody is left and nothing has been copied: the thread shall not wait for the work of earlier calls.
    if (results_begin_ == 0 && IsOver()) return;
    RunRecurrences();
    ForEachActive([this](Member& member) {
      member.status = member.call->CompleteOnDevice(member.host, member.segment, *stream_);
    });
    DownloadResults();
    std::shared_ptr<kernels::Event> launched = HandOver();
    if (launched != nullptr && own_stream_ != nullptr) {
      launched_ = std::move(launched);
      return;
    }
    if (absl::Status status = environment_.backend.Synchronize(*stream_); !status.ok()) {
      FailHandedOver(status);
      return FailAll(status);
    }
    EndHandedOver();
    const absl::Time computed = cache::SteadyNow();
    for (const Result& result : results_) {
      if (!result.member->status.ok()) continue;
      std::memcpy(result.to, host_block_.data() + result.offset, static_cast<std::size_t>(result.bytes));
    }
    ForEachActive([&](Member& member) {
      if (member.handed_over) return;
      UnaryPrefill& call = *member.call;
      if (!member.host.on_device.v_new) ZeroUnusedRows(call.plan_, member.segment, member.host.v_new);
      call.CompleteOnHost();
      AdvancePositions(call.plan_, call.cache());
      call.result_.positions = Positions(call.plan_, call.cache());
      SetTiming(call.result_.timing, call.created_, staged_, computed);
    });
  }

  /// Later calls on the slots of those whose results are all in the device's memory need not wait: their streams wait
  /// for the event that is returned, nullptr if there is none of this kind. Nor need their clients, if they wait for
  /// the done event alone.
  std::shared_ptr<kernels::Event> HandOver() {
    std::shared_ptr<kernels::Event> launched;
    bool is_refused = false;  // then they wait
    ForEachActive([&](Member& member) {
      UnaryPrefill& call = *member.call;
      if (!call.EndsOnDevice() || is_refused) return;
      if (launched == nullptr) {
        absl::StatusOr<std::unique_ptr<kernels::Event>> event = environment_.backend.Record(*stream_);
        is_refused = !event.ok();
        if (is_refused) return;
        launched = *std::move(event);
      }
      AdvancePositions(call.plan_, call.cache());
      call.result_.positions = Positions(call.plan_, call.cache());
      member.handed_over = true;
      call.HandOver(launched);
      if (!call.IsAnsweredEarly()) return;
      SetTiming(call.result_.timing, call.created_, staged_, cache::SteadyNow());
      call.Answer();
    });
    return launched;
  }

  void SetTiming(PrefillTiming& timing, absl::Time created, absl::Time staged, absl::Time computed) const {
    const absl::Time ended = cache::SteadyNow();
    timing.stage_in_us = absl::ToInt64Microseconds(staged - started_);
    timing.compute_us = absl::ToInt64Microseconds(computed - staged);
    timing.stage_out_us = absl::ToInt64Microseconds(ended - computed);
    timing.total_us = absl::ToInt64Microseconds(ended - created);
  }

  /// All in one launch; where that is refused each by itself, to find out whose fault it is.
  void RunRecurrences() {
    std::vector<kernels::Sequence> sequences;
    const kernels::RecurrenceShape& shape = members_.front().call->plan_.shape;
    ForEachActive([&](Member& member) {
      const std::vector<kernels::Sequence>& own = member.launch.sequences;
      sequences.insert(sequences.end(), own.begin(), own.end());
    });
    if (sequences.empty()) return;
    const absl::Status together = environment_.backend.RunRecurrence(shape, sequences, *stream_);
    if (together.ok()) return;
    if (absl::IsUnavailable(together)) return FailAll(together);
    ForEachActive([&](Member& member) {
      member.status = environment_.backend.RunRecurrence(shape, member.launch.sequences, *stream_);
    });
  }

  void DownloadResults() {
    if (results_.empty()) return;
    const kernels::ByteCopy copy = {host_block_.data() + results_begin_, device_block_.data() + results_begin_,
                                    static_cast<std::size_t>(results_end_ - results_begin_)};
    const absl::Status status = environment_.backend.CopyBytes({&copy, 1}, *stream_);
    // It comes behind work that cannot be taken back.
    if (!status.ok()) {
      FailAll(absl::UnavailableError(absl::StrCat("results cannot leave the device: ", status.message())));
    }
  }

  const Environment& environment_;
  const std::int64_t calls_;
  std::unique_ptr<kernels::Stream> own_stream_;  // nullptr where the work ends before Run does
  kernels::Stream* stream_ = nullptr;
  std::shared_ptr<kernels::Event> launched_;  // behind work that is under way still
  absl::Time started_;
  absl::Time staged_;
  std::vector<Member> members_;

  std::vector<StagingBuffer> decays_;
  StagingBuffer host_block_;
  StagingBuffer device_block_;
  std::int64_t results_begin_ = 0;  // in both blocks
  std::int64_t results_end_ = 0;
  std::vector<Result> results_;
};

absl::AnyInvocable<void()> RunPrefillBatch(const Environment& environment, absl::Span<UnaryPrefill* const> calls,
                                           kernels::Stream& stream) {
  auto batch = std::make_unique<PrefillBatch>(environment, calls, stream);
  batch->Run(calls);
  return [&environment, batch = std::move(batch)]() mutable {
    batch->Tell();
    if (!batch->IsUnderWay()) return;
    environment.poller.Watch([batch = std::move(batch)] {
      if (!batch->HasEnded()) return false;
      batch->Tell();
      return true;
    });
  };
}

}  // namespace gdpcache::engine
