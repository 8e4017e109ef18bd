#include "server/engine/staging_pool.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/engine/overload.h"

namespace gdpcache::engine {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kLargestClass = std::int64_t{64} << 20;
constexpr absl::Duration kRetryAfter = absl::Milliseconds(100);

std::int64_t RoundUp(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

std::int64_t StagingPool::BlockSize(std::int64_t size) {
  if (size == 0) return 0;
  if (size <= kPage) return kPage;
  if (size > kLargestClass) return RoundUp(size, kPage);
  const auto below = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size)));
  return RoundUp(size, below / 4);
}

absl::StatusOr<std::shared_ptr<StagingAccount>> StagingPool::Open(std::int64_t reserve,
                                                                  std::shared_ptr<cache::MemoryBudget> share) {
  std::vector<kernels::Buffer> dropped;
  const std::lock_guard lock(mutex_);
  if (reserve > budget_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the call needs ", reserve, " bytes of staging memory; the server has ", budget_));
  }
  if (share != nullptr && reserve > share->limit()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the call needs ", reserve, " bytes of staging memory; one tenant may use ", share->limit()));
  }
  if (absl::Status status = ChargeLocked(reserve, share.get()); !status.ok()) return status;
  ShrinkLocked(dropped);
  return std::shared_ptr<StagingAccount>(new StagingAccount(*this, std::move(share), reserve));
}

std::int64_t StagingPool::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

std::int64_t StagingPool::retained() const {
  const std::lock_guard lock(mutex_);
  return retained_;
}

void StagingPool::TrimLocked(std::int64_t level, std::vector<kernels::Buffer>& dropped) {
  while (HasTooMuchLocked(level)) {
    const auto largest = std::prev(free_.end());
    retained_ -= largest->first;
    dropped.push_back(std::move(largest->second));
    free_.erase(largest);
  }
}

bool StagingPool::HasTooMuchLocked(std::int64_t level) const {
  return !free_.empty() && (retained_ > level || free_.rbegin()->first > kLargestClass);
}

void StagingPool::ShrinkLocked(std::vector<kernels::Buffer>& dropped) {
  if (!HasTooMuchLocked(LevelLocked())) return;
  if (thread_ == nullptr) return TrimLocked(LevelLocked(), dropped);
  if (!std::exchange(shrinking_, true)) thread_->Run([this] { Shrink(); });
}

void StagingPool::Shrink() {
  while (true) {
    std::vector<kernels::Buffer> dropped;
    const std::lock_guard lock(mutex_);
    TrimLocked(LevelLocked(), dropped);
    if (dropped.empty()) {
      shrinking_ = false;
      return;
    }
  }
}

absl::Status StagingPool::ChargeLocked(std::int64_t bytes, cache::MemoryBudget* share) {
  if (bytes > budget_ - used_) {
    return Overloaded(absl::StrCat("the call needs ", bytes, " more bytes of staging memory; ", used_, " of ", budget_,
                                   " are in use"),
                      kRetryAfter);
  }
  if (share != nullptr && !share->TryTake(bytes)) {
    return Overloaded(absl::StrCat("the call needs ", bytes, " more bytes of staging memory; the tenant uses ",
                                   share->used(), " of the ", share->limit(), " that it may use"),
                      kRetryAfter);
  }
  used_ += bytes;
  return absl::OkStatus();
}

void StagingPool::ReturnChargeLocked(std::int64_t bytes, cache::MemoryBudget* share,
                                     std::vector<kernels::Buffer>& dropped) {
  if (share != nullptr) share->GiveBack(bytes);
  used_ -= bytes;
  ShrinkLocked(dropped);
}

StagingAccount::~StagingAccount() { EndReservation(); }

absl::StatusOr<StagingBuffer> StagingAccount::Acquire(std::int64_t size) {
  if (size == 0) return StagingBuffer();
  const std::int64_t block_size = StagingPool::BlockSize(size);
  std::vector<kernels::Buffer> dropped;
  {
    const std::lock_guard lock(pool_.mutex_);
    const std::int64_t before = ChargeLocked();
    in_use_ += block_size;
    if (absl::Status status = pool_.ChargeLocked(ChargeLocked() - before, share_.get()); !status.ok()) {
      in_use_ -= block_size;
      return status;
    }
    pool_.TrimLocked(pool_.budget_ - pool_.used_, dropped);
    if (const auto kept = pool_.free_.find(block_size); kept != pool_.free_.end()) {
      StagingBuffer buffer(shared_from_this(), std::move(kept->second), size);
      pool_.free_.erase(kept);
      pool_.retained_ -= block_size;
      return buffer;
    }
  }
  dropped.clear();  // before its place is taken
  absl::StatusOr<kernels::Buffer> block = pool_.backend_.Allocate(block_size, pool_.kind_);
  if (!block.ok()) {
    const std::lock_guard lock(pool_.mutex_);
    const std::int64_t before = ChargeLocked();
    in_use_ -= block_size;
    pool_.ReturnChargeLocked(before - ChargeLocked(), share_.get(), dropped);
    if (!absl::IsResourceExhausted(block.status())) return block.status();  // no use to try again
    return Overloaded(absl::StrCat("staging memory: ", block.status().message()), kRetryAfter);
  }
  return StagingBuffer(shared_from_this(), *std::move(block), size);
}

void StagingAccount::EndReservation() {
  std::vector<kernels::Buffer> dropped;
  const std::lock_guard lock(pool_.mutex_);
  const std::int64_t before = ChargeLocked();
  reserved_ = 0;
  pool_.ReturnChargeLocked(before - ChargeLocked(), share_.get(), dropped);
}

void StagingAccount::Return(kernels::Buffer block) {
  const auto size = static_cast<std::int64_t>(block.size());
  std::vector<kernels::Buffer> dropped;
  const std::lock_guard lock(pool_.mutex_);
  const std::int64_t before = ChargeLocked();
  in_use_ -= size;
  pool_.free_.emplace(size, std::move(block));
  pool_.retained_ += size;
  pool_.ReturnChargeLocked(before - ChargeLocked(), share_.get(), dropped);
}

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
  if (this != &other) {
    Reset();
    account_ = std::move(other.account_);
    block_ = std::move(other.block_);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void StagingBuffer::Reset() {
  if (account_ == nullptr) return;
  account_->Return(std::move(block_));
  account_.reset();
  block_ = kernels::Buffer();
  size_ = 0;
}

}  // namespace gdpcache::engine
