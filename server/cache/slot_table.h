#ifndef GDPCACHE_SERVER_CACHE_SLOT_TABLE_H_
#define GDPCACHE_SERVER_CACHE_SLOT_TABLE_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gdpcache::cache {

/// A session inside the server; not the secret its client knows. Never reused.
using SessionKey = std::uint64_t;

/// Which session holds which slot of one cache, and how many tokens each (layer, slot) has absorbed. At every moment
/// free + held + releasing slots make up all slots. Thread-safe.
class SlotTable {
 public:
  SlotTable(std::int64_t layers, std::int64_t slots);

  /// The `count` lowest free slots, positions zero; their contents are the caller's to zero before anybody learns of
  /// them. RESOURCE_EXHAUSTED names how many are free, and nothing is taken.
  absl::StatusOr<std::vector<std::int64_t>> Acquire(SessionKey session, std::int64_t count);

  /// Each of `slots` is in range (INVALID_ARGUMENT), named once (INVALID_ARGUMENT) and held by the session
  /// (PERMISSION_DENIED). `field` names them in messages: "state_indices" gives "state_indices[3]". -1 is passed over
  /// when `allow_padding`, else out of range.
  absl::Status CheckHeld(SessionKey session, absl::Span<const std::int64_t> slots, absl::string_view field,
                         bool allow_padding = false) const;

  /// The same for one slot, which `field` names as it stands.
  absl::Status CheckSlotHeld(SessionKey session, std::int64_t slot, absl::string_view field) const;

  /// Held slots become releasing: the session can no longer name them and nobody else can acquire them yet. All or
  /// none; errors as CheckHeld.
  absl::Status BeginRelease(SessionKey session, absl::Span<const std::int64_t> slots, absl::string_view field);

  /// Releasing slots become free.
  void FinishRelease(absl::Span<const std::int64_t> slots);

  /// Frees whatever the session still holds, not all at one moment. Only when it has no running call.
  void ReleaseAll(SessionKey session);

  std::int64_t Position(std::int64_t layer, std::int64_t slot) const;
  void SetPosition(std::int64_t layer, std::int64_t slot, std::int64_t position);

  struct Held {
    std::int64_t slot = 0;
    SessionKey session = 0;
    std::int64_t min_position = 0;
    std::int64_t max_position = 0;
  };
  /// Ascending, each as it is at some moment of the call: others may use the table meanwhile.
  std::vector<Held> ListHeld() const;

  struct Counts {
    std::int64_t free = 0;
    std::int64_t held = 0;
  };
  Counts counts() const;
  std::int64_t free_count() const { return counts().free; }

 private:
  enum class Use : std::uint8_t { kFree, kHeld, kReleasing };
  struct Slot {
    Use use = Use::kFree;
    SessionKey session = 0;
  };

  absl::Status CheckHeldLocked(SessionKey session, absl::Span<const std::int64_t> slots, absl::string_view field,
                               bool allow_padding) const;
  absl::Status CheckSlotHeldLocked(SessionKey session, std::int64_t slot, absl::FunctionRef<std::string()> name,
                                   bool allow_padding) const;

  void FreeLocked(std::int64_t slot);
  std::int64_t& PositionAt(std::int64_t layer, std::int64_t slot) { return positions_[layer * total() + slot]; }
  std::int64_t PositionAt(std::int64_t layer, std::int64_t slot) const { return positions_[layer * total() + slot]; }
  std::int64_t total() const { return static_cast<std::int64_t>(slots_.size()); }

  const std::int64_t layers_;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::int64_t> free_;  // a heap, the lowest first
  std::int64_t held_ = 0;
  std::vector<std::int64_t> positions_;  // [layers, slots]
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SLOT_TABLE_H_
