#ifndef GDPCACHE_SERVER_CACHE_SLOT_SEQUENCER_H_
#define GDPCACHE_SERVER_CACHE_SLOT_SEQUENCER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace gdpcache::cache {

/// Puts the calls on one cache in order: two claims that share a (layer, slot) hold it one after the other, in the
/// order they were enqueued; claims that share none do not wait for each other. Thread-safe.
///
/// Enqueueing a claim takes all its places in one step, so claims never deadlock. Each claim remembers only its direct
/// successors; a place remembers only its last claim.
///
/// A claim may hand its places over while work that it has given to a stream is still under way: its successors then
/// order their own work behind it, on their streams, and no thread waits. A place remembers the last such work until it
/// is complete, whoever has claimed and released it since: also somebody who has touched nothing.
class SlotSequencer {
  struct Node;
  struct State;

 public:
  /// A claim's hold; releasing it (destruction, too) lets its successors run. Movable. May outlive its sequencer.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept = default;
    Claim& operator=(Claim&& other) noexcept {
      if (this != &other) {
        Release();
        state_ = std::move(other.state_);
        node_ = std::move(other.node_);
      }
      return *this;
    }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    ~Claim() { Release(); }
    /// Callable at any time, also before the claim is ready: it then gives way as soon as its turn comes, and its
    /// on_ready is not called any more unless that call had already begun.
    void Release();

    /// Lets the successors run although `work`, behind which lies all that this claim has given to streams, may not
    /// have happened: they, and every later claim on these places, find it in Unfinished() until this claim is
    /// released, which it must not be before. Once, and only when ready; all in Unfinished() must come before `work`.
    void HandOver(std::shared_ptr<kernels::Event> work);

    /// What earlier claims on the places have handed over and not yet released, each once. Whoever gives a stream work
    /// on the places lets it wait for these first. Only of a claim that is ready.
    std::vector<std::shared_ptr<kernels::Event>> Unfinished() const;

   private:
    friend class SlotSequencer;
    Claim(std::shared_ptr<State> state, std::shared_ptr<Node> node)
        : state_(std::move(state)), node_(std::move(node)) {}
    std::shared_ptr<State> state_;
    std::shared_ptr<Node> node_;
  };

  explicit SlotSequencer(std::int64_t slots);
  SlotSequencer(const SlotSequencer&) = delete;
  SlotSequencer& operator=(const SlotSequencer&) = delete;
  ~SlotSequencer() = default;

  /// Claims every (layer, slot) of the cross product. `on_ready` runs once, without a lock held, when all earlier
  /// claims have been released: on this thread before Enqueue returns if there are none, else on the thread that
  /// releases the last one (after its Release returns, where that is called by another claim's on_ready); it must be
  /// short and must not block. Duplicates are allowed.
  Claim Enqueue(absl::Span<const std::int64_t> layers, absl::Span<const std::int64_t> slots,
                absl::AnyInvocable<void()> on_ready);

 private:
  const std::int64_t slots_;
  const std::shared_ptr<State> state_;  // shared with the claims
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SLOT_SEQUENCER_H_
