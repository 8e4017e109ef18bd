#include "server/cache/slot_table.h"

#include <algorithm>
#include <functional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

constexpr std::int64_t kPadding = -1;
constexpr absl::Duration kRetryAfter = absl::Seconds(1);
// Positions or slots that are looked through before others get the lock: some ten microseconds.
constexpr std::int64_t kStepsAtOnce = 16'384;

}  // namespace

SlotTable::SlotTable(std::int64_t layers, std::int64_t slots)
    : layers_(layers), slots_(slots), free_(slots), positions_(layers * slots, 0) {
  for (std::int64_t slot = 0; slot < slots; ++slot) free_[slot] = slot;  // ascending: a heap already
}

absl::StatusOr<std::vector<std::int64_t>> SlotTable::Acquire(SessionKey session, std::int64_t count) {
  if (count < 1) return InvalidField("count", absl::StrCat("is ", count, "; it must be at least 1"));
  const std::lock_guard lock(mutex_);
  const std::int64_t free = static_cast<std::int64_t>(free_.size());
  if (count > free) {
    return Exhausted(absl::StrCat("count is ", count, "; ", free, " of the cache's ", slots_.size(), " slots are free"),
                     kRetryAfter);
  }
  std::vector<std::int64_t> taken;
  taken.reserve(count);
  for (std::int64_t n = 0; n < count; ++n) {
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    const std::int64_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = {Use::kHeld, session};
    for (std::int64_t layer = 0; layer < layers_; ++layer) PositionAt(layer, slot) = 0;
    taken.push_back(slot);
  }
  held_ += count;
  return taken;
}

absl::Status SlotTable::CheckHeld(SessionKey session, absl::Span<const std::int64_t> slots, absl::string_view field,
                                  bool allow_padding) const {
  const std::lock_guard lock(mutex_);
  return CheckHeldLocked(session, slots, field, allow_padding);
}

absl::Status SlotTable::CheckSlotHeld(SessionKey session, std::int64_t slot, absl::string_view field) const {
  const std::lock_guard lock(mutex_);
  return CheckSlotHeldLocked(
      session, slot, [field] { return std::string(field); }, /*allow_padding=*/false);
}

absl::Status SlotTable::CheckHeldLocked(SessionKey session, absl::Span<const std::int64_t> slots,
                                        absl::string_view field, bool allow_padding) const {
  absl::flat_hash_set<std::int64_t> seen;
  seen.reserve(std::min(slots.size(), slots_.size()));
  for (std::size_t n = 0; n < slots.size(); ++n) {
    const std::int64_t slot = slots[n];
    if (slot == kPadding && allow_padding) continue;
    const auto name = [field, n] { return absl::StrCat(field, "[", n, "]"); };
    if (!seen.insert(slot).second) return InvalidField(name(), absl::StrCat("is ", slot, ", which is named before"));
    if (absl::Status status = CheckSlotHeldLocked(session, slot, name, allow_padding); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SlotTable::CheckSlotHeldLocked(SessionKey session, std::int64_t slot,
                                            absl::FunctionRef<std::string()> name, bool allow_padding) const {
  if (slot < 0 || slot >= total()) {
    return InvalidField(name(), absl::StrCat("is ", slot, "; the cache has ", Counted(total(), "slot"),
                                             allow_padding ? " (-1 for none)" : ""));
  }
  if (slots_[slot].use != Use::kHeld || slots_[slot].session != session) {
    return ResourceError(absl::StatusCode::kPermissionDenied, "slot", absl::StrCat(slot),
                         absl::StrCat(name(), " is ", slot, ", which the session does not hold"));
  }
  return absl::OkStatus();
}

absl::Status SlotTable::BeginRelease(SessionKey session, absl::Span<const std::int64_t> slots,
                                     absl::string_view field) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = CheckHeldLocked(session, slots, field, /*allow_padding=*/false); !status.ok()) {
    return status;
  }
  for (const std::int64_t slot : slots) slots_[slot] = {Use::kReleasing, 0};
  held_ -= static_cast<std::int64_t>(slots.size());
  return absl::OkStatus();
}

void SlotTable::FinishRelease(absl::Span<const std::int64_t> slots) {
  const std::lock_guard lock(mutex_);
  for (const std::int64_t slot : slots) {
    if (slots_[slot].use == Use::kReleasing) FreeLocked(slot);
  }
}

void SlotTable::ReleaseAll(SessionKey session) {
  for (std::int64_t slot = 0; slot < total();) {
    const std::lock_guard lock(mutex_);
    const std::int64_t end = std::min(total(), slot + kStepsAtOnce);
    for (; slot < end; ++slot) {
      if (slots_[slot].use != Use::kHeld || slots_[slot].session != session) continue;
      FreeLocked(slot);
      --held_;
    }
  }
}

void SlotTable::FreeLocked(std::int64_t slot) {
  slots_[slot] = {};
  free_.push_back(slot);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

std::int64_t SlotTable::Position(std::int64_t layer, std::int64_t slot) const {
  const std::lock_guard lock(mutex_);
  return PositionAt(layer, slot);
}

void SlotTable::SetPosition(std::int64_t layer, std::int64_t slot, std::int64_t position) {
  const std::lock_guard lock(mutex_);
  PositionAt(layer, slot) = position;
}

std::vector<SlotTable::Held> SlotTable::ListHeld() const {
  std::vector<Held> held;
  for (std::int64_t slot = 0; slot < total();) {
    const std::lock_guard lock(mutex_);
    for (std::int64_t steps = 0; slot < total() && steps < kStepsAtOnce; ++slot, ++steps) {
      if (slots_[slot].use != Use::kHeld) continue;
      Held entry{slot, slots_[slot].session, PositionAt(0, slot), PositionAt(0, slot)};
      for (std::int64_t layer = 1; layer < layers_; ++layer) {
        entry.min_position = std::min(entry.min_position, PositionAt(layer, slot));
        entry.max_position = std::max(entry.max_position, PositionAt(layer, slot));
      }
      steps += layers_;
      held.push_back(entry);
    }
  }
  return held;
}

SlotTable::Counts SlotTable::counts() const {
  const std::lock_guard lock(mutex_);
  return {static_cast<std::int64_t>(free_.size()), held_};
}

}  // namespace gdpcache::cache
