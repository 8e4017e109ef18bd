#include "tests/support/fault_injecting_backend.h"

#include <utility>

namespace gdpcache::test {

void FaultInjectingBackend::FailAfter(Operation operation, std::int64_t passed, absl::Status status) {
  PlanFailure(operation, passed, std::move(status), false);
}

void FaultInjectingBackend::FailForEverAfter(Operation operation, std::int64_t passed, absl::Status status) {
  PlanFailure(operation, passed, std::move(status), true);
}

void FaultInjectingBackend::PlanFailure(Operation operation, std::int64_t passed, absl::Status status, bool for_ever) {
  const std::lock_guard lock(mutex_);
  Plan& plan = plans_[static_cast<std::size_t>(operation)];
  plan.passes = passed;
  plan.for_ever = for_ever;
  plan.failure = std::move(status);
}

void FaultInjectingBackend::BeforeEach(Operation operation, std::function<void()> hook) {
  const std::lock_guard lock(mutex_);
  plans_[static_cast<std::size_t>(operation)].hook = std::move(hook);
}

std::int64_t FaultInjectingBackend::calls(Operation operation) const {
  const std::lock_guard lock(mutex_);
  return plans_[static_cast<std::size_t>(operation)].calls;
}

absl::Status FaultInjectingBackend::Enter(Operation operation) {
  std::function<void()> hook;
  absl::Status status;
  {
    const std::lock_guard lock(mutex_);
    Plan& plan = plans_[static_cast<std::size_t>(operation)];
    ++plan.calls;
    hook = plan.hook;
    if (plan.passes >= 0 && plan.passes-- == 0) {
      status = plan.failure;
      if (plan.for_ever) lost_ = status;
    }
    status.Update(lost_);
  }
  if (hook) hook();
  return status;
}

absl::StatusOr<kernels::Buffer> FaultInjectingBackend::Allocate(std::size_t size, kernels::MemoryKind kind) {
  if (absl::Status status = Enter(Operation::kAllocate); !status.ok()) return status;
  return real_.Allocate(size, kind);
}

absl::StatusOr<std::unique_ptr<kernels::Stream>> FaultInjectingBackend::CreateStream() {
  if (absl::Status status = Enter(Operation::kCreateStream); !status.ok()) return status;
  return real_.CreateStream();
}

absl::Status FaultInjectingBackend::RunRecurrence(const kernels::RecurrenceShape& shape,
                                                  absl::Span<const kernels::Sequence> sequences,
                                                  kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kRunRecurrence); !status.ok()) return status;
  return real_.RunRecurrence(shape, sequences, stream);
}

absl::Status FaultInjectingBackend::CopyStates(const kernels::RecurrenceShape& shape,
                                               absl::Span<const kernels::StateCopy> copies, kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kCopyStates); !status.ok()) return status;
  return real_.CopyStates(shape, copies, stream);
}

absl::Status FaultInjectingBackend::CopyBytes(absl::Span<const kernels::ByteCopy> copies, kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kCopyBytes); !status.ok()) return status;
  return real_.CopyBytes(copies, stream);
}

absl::Status FaultInjectingBackend::CopyBytesAhead(absl::Span<const kernels::ByteCopy> copies,
                                                   kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kCopyBytes); !status.ok()) return status;
  return real_.CopyBytesAhead(copies, stream);
}

absl::Status FaultInjectingBackend::CopyBytesAside(absl::Span<const kernels::ByteCopy> copies,
                                                   kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kCopyBytes); !status.ok()) return status;
  return real_.CopyBytesAside(copies, stream);
}

absl::Status FaultInjectingBackend::ZeroBytes(absl::Span<const kernels::ByteRange> ranges, kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kZeroBytes); !status.ok()) return status;
  return real_.ZeroBytes(ranges, stream);
}

absl::StatusOr<std::int64_t> FaultInjectingBackend::FindNonFinite(absl::Span<const kernels::FiniteCheck> ranges,
                                                                  kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kFindNonFinite); !status.ok()) return status;
  return real_.FindNonFinite(ranges, stream);
}

absl::Status FaultInjectingBackend::Synchronize(kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kSynchronize); !status.ok()) return status;
  return real_.Synchronize(stream);
}

absl::StatusOr<std::unique_ptr<kernels::Event>> FaultInjectingBackend::Record(kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kRecord); !status.ok()) return status;
  return real_.Record(stream);
}

absl::Status FaultInjectingBackend::Wait(kernels::Event& event) {
  if (absl::Status status = Enter(Operation::kSynchronize); !status.ok()) return status;
  return real_.Wait(event);
}

absl::StatusOr<bool> FaultInjectingBackend::HasHappened(kernels::Event& event) {
  if (absl::Status status = Enter(Operation::kQuery); !status.ok()) return status;
  return real_.HasHappened(event);
}

absl::Status FaultInjectingBackend::Await(kernels::Event& event, kernels::Stream& stream) {
  if (absl::Status status = Enter(Operation::kAwait); !status.ok()) return status;
  return real_.Await(event, stream);
}

}  // namespace gdpcache::test
