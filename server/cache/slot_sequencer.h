#ifndef GDPCACHE_SERVER_CACHE_SLOT_SEQUENCER_H_
#define GDPCACHE_SERVER_CACHE_SLOT_SEQUENCER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"

namespace gdpcache::cache {

/// Puts the calls on one cache in order: two claims that share a (layer, slot) hold it one after the other, in the
/// order they were enqueued; claims that share none do not wait for each other. Thread-safe.
///
/// Enqueueing a claim takes all its places in one step, so claims never deadlock. Each claim remembers only its direct
/// successors; a place remembers only its last claim.
class SlotSequencer {
 public:
  /// A claim's hold; releasing it (destruction, too) lets its successors run. Movable.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept;
    Claim& operator=(Claim&& other) noexcept;
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    ~Claim() { Release(); }
    /// Callable at any time, also before the claim is ready: it then gives way as soon as its turn comes, and its
    /// on_ready is not called any more unless that call had already begun.
    void Release();

   private:
    friend class SlotSequencer;
    struct Node;
    Claim(SlotSequencer* sequencer, std::shared_ptr<Node> node);
    SlotSequencer* sequencer_ = nullptr;
    std::shared_ptr<Node> node_;
  };

  explicit SlotSequencer(std::int64_t slots) : slots_(slots) {}
  SlotSequencer(const SlotSequencer&) = delete;
  SlotSequencer& operator=(const SlotSequencer&) = delete;
  ~SlotSequencer();

  /// Claims every (layer, slot) of the cross product. `on_ready` runs once, without a lock held, when all earlier
  /// claims have been released: on this thread before Enqueue returns if there are none, else on the thread that
  /// releases the last one; it must be short and must not block. Duplicates are allowed.
  Claim Enqueue(absl::Span<const std::int64_t> layers, absl::Span<const std::int64_t> slots,
                absl::AnyInvocable<void()> on_ready);

 private:
  const std::int64_t slots_;
  std::mutex mutex_;
  absl::flat_hash_map<std::int64_t, std::shared_ptr<Claim::Node>> last_;  // by layer * slots + slot
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SLOT_SEQUENCER_H_
