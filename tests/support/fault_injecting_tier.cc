#include "tests/support/fault_injecting_tier.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/copy_and_wait.h"

namespace gdpcache::test {

using cache::SnapshotPart;

class FaultInjectingTier::Copy final : public cache::TierCopy {
 public:
  Copy(kernels::Backend& backend, std::shared_ptr<Shared> shared, std::int64_t size)
      : backend_(backend), shared_(std::move(shared)), size_(size) {}

  absl::Span<const SnapshotPart> parts() const override { return {}; }

  absl::Status Load(absl::Span<const SnapshotPart> destination, kernels::Stream& stream) const override {
    if (absl::Status status = shared_->Enter(Operation::kLoad); !status.ok()) return status;
    {
      const std::lock_guard lock(shared_->mutex);
      if (removed_) return absl::NotFoundError("the file is gone");
    }
    std::vector<kernels::ByteCopy> copies;
    for (std::size_t layer = 0; layer < destination.size(); ++layer) {
      const SnapshotPart& part = destination[layer];
      copies.push_back({part.state.data, states_[layer].data(), part.state.size});
      if (part.auxiliary.size > 0) {
        copies.push_back({part.auxiliary.data, auxiliary_[layer].data(), part.auxiliary.size});
      }
    }
    return kernels::CopyAndWait(backend_, copies, stream);
  }

  void Remove() noexcept override {
    static_cast<void>(shared_->Enter(Operation::kRemove));
    const std::lock_guard lock(shared_->mutex);
    if (std::exchange(removed_, true)) return;
    shared_->used -= size_;
    --shared_->copies;
  }

  absl::Status Fill(absl::Span<const SnapshotPart> source, kernels::Stream& stream) {
    std::vector<kernels::ByteCopy> copies;
    states_.resize(source.size());
    auxiliary_.resize(source.size());
    for (std::size_t layer = 0; layer < source.size(); ++layer) {
      states_[layer].resize(source[layer].state.size);
      auxiliary_[layer].resize(source[layer].auxiliary.size);
      copies.push_back({states_[layer].data(), source[layer].state.data, states_[layer].size()});
      if (!auxiliary_[layer].empty()) {
        copies.push_back({auxiliary_[layer].data(), source[layer].auxiliary.data, auxiliary_[layer].size()});
      }
    }
    return kernels::CopyAndWait(backend_, copies, stream);
  }

 private:
  kernels::Backend& backend_;
  const std::shared_ptr<Shared> shared_;
  const std::int64_t size_;
  std::vector<std::string> states_;
  std::vector<std::string> auxiliary_;
  bool removed_ = false;  // guarded by shared_->mutex
};

FaultInjectingTier::FaultInjectingTier(kernels::Backend& backend, std::int64_t capacity)
    : backend_(backend), capacity_(capacity), shared_(std::make_shared<Shared>()) {}

absl::Status FaultInjectingTier::Shared::Enter(Operation operation) {
  std::function<void()> hook;
  absl::Status status;
  {
    const std::lock_guard lock(mutex);
    Plan& plan = plans[static_cast<std::size_t>(operation)];
    ++plan.calls;
    hook = plan.hook;
    if (plan.passes == 0) status = plan.failure;
    if (plan.passes > 0 || (plan.passes == 0 && !plan.repeats)) --plan.passes;
  }
  if (hook) hook();
  return status;
}

void FaultInjectingTier::FailAfter(Operation operation, std::int64_t passed, absl::Status status, bool repeats) {
  const std::lock_guard lock(shared_->mutex);
  Plan& plan = shared_->plans[static_cast<std::size_t>(operation)];
  plan.passes = passed;
  plan.repeats = repeats;
  plan.failure = std::move(status);
}

void FaultInjectingTier::FailNoMore(Operation operation) { FailAfter(operation, -1, absl::OkStatus()); }

void FaultInjectingTier::BeforeEach(Operation operation, std::function<void()> hook) {
  const std::lock_guard lock(shared_->mutex);
  shared_->plans[static_cast<std::size_t>(operation)].hook = std::move(hook);
}

std::int64_t FaultInjectingTier::calls(Operation operation) const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->plans[static_cast<std::size_t>(operation)].calls;
}

std::int64_t FaultInjectingTier::copies() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->copies;
}

std::int64_t FaultInjectingTier::used() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->used;
}

absl::StatusOr<std::shared_ptr<cache::TierCopy>> FaultInjectingTier::Store(const cache::SnapshotRecord& record,
                                                                           absl::Span<const SnapshotPart> source,
                                                                           kernels::Stream& stream) {
  if (absl::Status status = shared_->Enter(Operation::kStore); !status.ok()) return status;
  const std::int64_t size = record.space.snapshot_bytes();
  {
    const std::lock_guard lock(shared_->mutex);
    if (size > capacity_ - shared_->used) return absl::ResourceExhaustedError("the test's disk is full");
    shared_->used += size;
    ++shared_->copies;
  }
  auto copy = std::make_shared<Copy>(backend_, shared_, size);
  if (absl::Status status = copy->Fill(source, stream); !status.ok()) {
    copy->Remove();
    return status;
  }
  return copy;
}

}  // namespace gdpcache::test
