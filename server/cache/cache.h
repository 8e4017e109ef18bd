#ifndef GDPCACHE_SERVER_CACHE_CACHE_H_
#define GDPCACHE_SERVER_CACHE_CACHE_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/cache/geometry.h"
#include "server/cache/slot_sequencer.h"
#include "server/cache/slot_table.h"
#include "server/cache/state_pool.h"

namespace gdpcache::cache {

/// What a caller says when it creates a cache.
struct CacheSpec {
  std::string name;
  Geometry geometry;
  std::string fingerprint = {};
  bool ephemeral = false;
};

/// One model's states: their memory, who holds which slot, and the order of the calls on them. Thread-safe.
class Cache {
 public:
  static absl::StatusOr<std::shared_ptr<Cache>> Create(kernels::Backend& backend, CacheSpec spec);

  const CacheSpec& spec() const { return spec_; }
  const Geometry& geometry() const { return spec_.geometry; }
  const StatePool& pool() const { return pool_; }
  SlotTable& slots() { return slots_; }
  const SlotTable& slots() const { return slots_; }
  SlotSequencer& sequencer() { return sequencer_; }

  /// To be held while a call makes sure of its slots (SlotTable's Acquire, CheckHeld, BeginRelease) and enqueues its
  /// claim on them: then nobody can release or acquire them in between, and a call never touches a slot that has
  /// meanwhile become somebody else's, nor an acquired one before it is zero.
  std::mutex& arrivals() { return arrivals_; }

 private:
  Cache(CacheSpec spec, StatePool pool)
      : spec_(std::move(spec)),
        pool_(std::move(pool)),
        slots_(spec_.geometry.layers, spec_.geometry.slots),
        sequencer_(spec_.geometry.slots) {}

  const CacheSpec spec_;
  const StatePool pool_;
  SlotTable slots_;
  SlotSequencer sequencer_;
  std::mutex arrivals_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_CACHE_H_
