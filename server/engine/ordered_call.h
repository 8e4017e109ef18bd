#ifndef GDPCACHE_SERVER_ENGINE_ORDERED_CALL_H_
#define GDPCACHE_SERVER_ENGINE_ORDERED_CALL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cache/cache.h"
#include "server/cache/session.h"
#include "server/cache/slot_sequencer.h"
#include "server/engine/call.h"
#include "server/engine/environment.h"
#include "server/engine/executor.h"

namespace gdpcache::engine {

/// The (layer, slot) places of a call: the cross product.
struct Places {
  std::vector<std::int64_t> layers;
  std::vector<std::int64_t> slots;
};

/// A call that gets what it needs, waits for its slots and then does its work in steps, one after the other, on the
/// executor.
///
///   new -> starting -> preparing -> arriving -> active -> over
///
/// While active it is busy (a step runs) or idle (it waits for its slots, or for whatever its next step needs). Cancel
/// ends a call that prepares or is idle at once and a busy one after its step, unless its commit has begun. While it
/// starts or arrives, only the thread that makes it do so touches more than the flags.
class OrderedCall : public Call, public std::enable_shared_from_this<OrderedCall> {
 public:
  void Start() final;
  void Cancel(absl::Status reason) final;

 protected:
  using Lock = std::unique_lock<std::mutex>;

  OrderedCall(const Environment& environment, CallContext context)
      : environment_(environment), context_(std::move(context)) {}

  const Environment& environment() const { return environment_; }
  const CallContext& context() const { return context_; }
  cache::Cache& cache() const { return *context_.session->cache(); }

  /// Begins to get what the call needs before it takes its place in the order of its slots. Prepared tells, maybe
  /// before this returns, that it is there, or why it is not; what comes after the call's end is to be dropped.
  virtual void Prepare() { Prepared(absl::OkStatus()); }
  /// `may_run_here`: the first step on this thread, see MayRunHere.
  void Prepared(absl::Status status, bool may_run_here = false);

  /// Makes sure of the slots that the call needs; runs under the cache's arrivals().
  virtual absl::StatusOr<Places> Arrive() = 0;

  /// Whether the call's next step can run; asked while the call is idle and holds its slots, with the mutex held.
  virtual bool HasStep() const { return true; }

  /// One step, without the mutex. True when the call is complete. Must change no slot before BeginCommit.
  virtual absl::StatusOr<bool> RunStep(kernels::Stream& stream) = 0;

  /// Whether it gives the stream anything.
  virtual bool UsesStream() const { return true; }

  /// Whether the first step, if no other call is ahead, may run on the thread that starts the call, or tells that it is
  /// prepared.
  virtual Executor::Here MayRunHere() const { return Executor::Here::kNever; }
  /// For copies of so many slots within the cache. A device takes longer for them than the thread may wait.
  Executor::Here HereIfFew(std::int64_t slots) const;

  /// About how many milliseconds of the workers' time the next step takes, for Admission.
  virtual double StepWork() const { return 1; }

  /// This call where its next step, which runs `here` if it can, can be done together with those of others; else
  /// nullptr. Whoever does it begins with JoinEarlierCalls and tells the outcome by StepDone.
  virtual MergeableTask* AsMergeable(Executor::Here /*here*/) { return nullptr; }
  void StepDone(const absl::StatusOr<bool>& complete);

  /// Puts what the stream is given from now on behind what earlier calls on the same slots have left under way. Before
  /// RunStep it has been done, if the call UsesStream.
  absl::Status JoinEarlierCalls(kernels::Stream& stream) const;
  /// Whether there is such work.
  bool ComesBehindWork() const { return !claim_.Unfinished().empty(); }

  /// Lets later calls on the slots go on although what this one has given to streams, all of it before `work`, is not
  /// complete; for a step whose commit has begun, when nothing is left to be done but to wait. From then on the slots
  /// are the later calls': an error means that the device is lost. The call itself goes on until StepDone.
  void HandOver(std::shared_ptr<kernels::Event> work);

  /// Whether Cancel and the deadline have an effect, and whether the call may be refused for those under way.
  virtual bool IsCancellable() const { return true; }

  /// Undoes Arrive after a failure of whatever kind; the claim is still held.
  virtual void Withdraw() {}

  /// Frees staging memory and such; the claim is released.
  virtual void LetGo() {}

  /// Tells the caller.
  virtual void Finish(absl::Status status) = 0;

  /// To be called by RunStep when only the commit is left: from then on the call cannot be cancelled. An error, to be
  /// returned, if it already is or its deadline has passed.
  absl::Status BeginCommit();

  std::mutex& mutex() { return mutex_; }
  /// With the mutex held: nullopt while the call goes on, else why it does not.
  std::optional<absl::Status> EndedLocked() const;
  /// Ends the call with `reason`, as Cancel does, or runs the next step if there is one. Gives up the lock.
  void FailLocked(Lock lock, absl::Status reason);
  void AdvanceLocked(Lock lock) { AdvanceLocked(std::move(lock), false); }
  /// The same; the step may run on this thread, see MayRunHere.
  void AdvanceLocked(Lock lock, bool may_run_here);

 private:
  enum class State : std::uint8_t { kNew, kStarting, kPreparing, kArriving, kActive, kOver };

  Executor::Owner owner() const { return context_.session->key(); }
  absl::StatusOr<bool> Step(kernels::Stream& stream);
  absl::Status Admit();
  void TakePlaces(bool may_run_here);
  void Ready();
  void Conclude(absl::Status status, bool arrived);

  const Environment& environment_;
  const CallContext context_;
  cache::Session::Call session_call_;
  bool admitted_ = false;
  cache::SlotSequencer::Claim claim_;

  std::mutex mutex_;  // guards what follows
  State state_ = State::kNew;
  bool prepared_ = false;
  bool ready_ = false;  // the claim is
  bool busy_ = false;
  double submitted_ = 0;  // work of the step that the workers have
  bool committing_ = false;
  std::optional<absl::Status> failure_;
};

/// What a call that ends with `status` answers.
template <typename T>
absl::StatusOr<T> ResultOr(absl::Status status, T&& result) {
  if (!status.ok()) return status;
  return std::forward<T>(result);
}

/// An ordered call of a single step.
class OneStepCall : public OrderedCall {
 protected:
  using OrderedCall::OrderedCall;

  /// The step.
  virtual absl::Status Execute(kernels::Stream& stream) = 0;

 private:
  absl::StatusOr<bool> RunStep(kernels::Stream& stream) final {
    absl::Status status = Execute(stream);
    if (!status.ok()) return status;
    return true;
  }
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_ORDERED_CALL_H_
