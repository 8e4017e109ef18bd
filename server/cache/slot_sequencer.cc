#include "server/cache/slot_sequencer.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace gdpcache::cache {

struct SlotSequencer::Node {
  std::vector<std::int64_t> places;
  std::int64_t predecessors = 0;  // not yet complete
  bool released = false;
  absl::AnyInvocable<void()> on_ready;  // until it has begun or the claim has been released
  std::vector<std::shared_ptr<Node>> successors;
  std::shared_ptr<kernels::Event> unfinished;  // what has been handed over
};

struct SlotSequencer::State {
  std::mutex mutex;
  absl::flat_hash_map<std::int64_t, std::shared_ptr<Node>> last;         // by place; the mutex guards it and every node
  absl::flat_hash_map<std::int64_t, std::shared_ptr<Node>> handed_over;  // by place, the last one not yet released

  /// Takes `first`, which has been released and has no predecessors, out of the order; then every successor that was
  /// waiting for nothing else and has been released, too. Appends the others that are ready now.
  void CompleteLocked(std::shared_ptr<Node> first, std::deque<std::shared_ptr<Node>>& ready) {
    std::vector<std::shared_ptr<Node>> complete = {std::move(first)};
    while (!complete.empty()) {
      const std::shared_ptr<Node> node = std::move(complete.back());
      complete.pop_back();
      for (const std::int64_t place : node->places) {
        const auto found = last.find(place);
        if (found != last.end() && found->second == node) last.erase(found);
      }
      for (std::shared_ptr<Node>& successor : node->successors) {
        if (--successor->predecessors > 0) continue;
        if (successor->released) {
          complete.push_back(std::move(successor));
        } else {
          ready.push_back(std::move(successor));
        }
      }
      node->successors.clear();
    }
  }

  using Ready = std::pair<std::shared_ptr<State>, std::shared_ptr<Node>>;
  static thread_local std::deque<Ready>* running;  // by the RunReady below this one on the stack

  /// Calls on_ready of each. A call that releases claims leaves those it made ready to the outermost RunReady: a long
  /// queue whose calls end at once must not end up as deep recursion.
  static void RunReady(const std::shared_ptr<State>& state, std::deque<std::shared_ptr<Node>> nodes) {
    std::deque<Ready> mine;
    std::deque<Ready>& queue = running != nullptr ? *running : mine;
    for (std::shared_ptr<Node>& node : nodes) queue.emplace_back(state, std::move(node));
    if (running != nullptr) return;
    running = &mine;
    while (!mine.empty()) {
      const Ready next = std::move(mine.front());
      mine.pop_front();
      absl::AnyInvocable<void()> on_ready;
      {
        const std::lock_guard lock(next.first->mutex);
        on_ready = std::exchange(next.second->on_ready, nullptr);
      }
      if (on_ready) on_ready();
    }
    running = nullptr;
  }
};

thread_local std::deque<SlotSequencer::State::Ready>* SlotSequencer::State::running = nullptr;

SlotSequencer::SlotSequencer(std::int64_t slots) : slots_(slots), state_(std::make_shared<State>()) {}

SlotSequencer::Claim SlotSequencer::Enqueue(absl::Span<const std::int64_t> layers, absl::Span<const std::int64_t> slots,
                                            absl::AnyInvocable<void()> on_ready) {
  auto node = std::make_shared<Node>();
  node->places.reserve(layers.size() * slots.size());
  {
    const std::lock_guard lock(state_->mutex);
    for (const std::int64_t layer : layers) {
      for (const std::int64_t slot : slots) {
        const std::int64_t place = layer * slots_ + slot;
        std::shared_ptr<Node>& last = state_->last[place];
        if (last == node) continue;
        // Every entry that this call adds to a node's successors is `node`: looking at the last one finds duplicates.
        if (last != nullptr && (last->successors.empty() || last->successors.back() != node)) {
          last->successors.push_back(node);
          ++node->predecessors;
        }
        last = node;
        node->places.push_back(place);
      }
    }
    if (node->predecessors > 0) node->on_ready = std::exchange(on_ready, nullptr);
  }
  if (on_ready) on_ready();
  return Claim(state_, std::move(node));
}

void SlotSequencer::Claim::Release() {
  const std::shared_ptr<State> state = std::move(state_);
  const std::shared_ptr<Node> node = std::move(node_);
  if (node == nullptr) return;
  absl::AnyInvocable<void()> dropped;
  std::deque<std::shared_ptr<Node>> ready;
  {
    const std::lock_guard lock(state->mutex);
    if (node->unfinished != nullptr) {
      for (const std::int64_t place : node->places) {
        const auto found = state->handed_over.find(place);
        if (found != state->handed_over.end() && found->second == node) state->handed_over.erase(found);
      }
      return;
    }
    node->released = true;
    dropped = std::exchange(node->on_ready, nullptr);
    if (node->predecessors == 0) state->CompleteLocked(node, ready);
  }
  if (!ready.empty()) State::RunReady(state, std::move(ready));
}

void SlotSequencer::Claim::HandOver(std::shared_ptr<kernels::Event> work) {
  std::deque<std::shared_ptr<Node>> ready;
  {
    const std::lock_guard lock(state_->mutex);
    node_->unfinished = std::move(work);
    for (const std::int64_t place : node_->places) state_->handed_over[place] = node_;
    node_->released = true;
    state_->CompleteLocked(node_, ready);
  }
  if (!ready.empty()) State::RunReady(state_, std::move(ready));
}

std::vector<std::shared_ptr<kernels::Event>> SlotSequencer::Claim::Unfinished() const {
  std::vector<std::shared_ptr<kernels::Event>> unfinished;
  const std::lock_guard lock(state_->mutex);
  if (state_->handed_over.empty()) return unfinished;
  for (const std::int64_t place : node_->places) {
    const auto found = state_->handed_over.find(place);
    if (found == state_->handed_over.end()) continue;
    const std::shared_ptr<kernels::Event>& work = found->second->unfinished;
    if (std::find(unfinished.begin(), unfinished.end(), work) == unfinished.end()) unfinished.push_back(work);
  }
  return unfinished;
}

}  // namespace gdpcache::cache
