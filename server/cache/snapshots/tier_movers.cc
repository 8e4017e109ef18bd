#include "server/cache/snapshots/tier_movers.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

constexpr int kLoaders = 2;
constexpr std::chrono::seconds kPeriod{1};  // of ending what has expired, and of trying again what could not be done

// Room in a full store comes back when others have been copied down, or let go.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<TierMovers>> TierMovers::Start(StoreState& state) {
  std::unique_ptr<TierMovers> movers(new TierMovers(state));
  if (state.levels.empty()) return movers;
  if (absl::Status status = movers->StartThread(&TierMovers::RunMover); !status.ok()) return status;
  if (!state.has_disk()) return movers;
  if (absl::Status status = movers->StartThread(&TierMovers::RunWriter); !status.ok()) return status;
  for (int n = 0; n < kLoaders; ++n) {
    if (absl::Status status = movers->StartThread(&TierMovers::RunLoader); !status.ok()) return status;
  }
  return movers;
}

absl::Status TierMovers::StartThread(void (TierMovers::*run)(kernels::Stream&)) {
  absl::StatusOr<std::unique_ptr<kernels::Stream>> stream = state_.backend.CreateStream();
  if (!stream.ok()) return stream.status();
  threads_.emplace_back([this, run, stream = *std::move(stream)] { (this->*run)(*stream); });
  return absl::OkStatus();
}

TierMovers::~TierMovers() {
  {
    const std::lock_guard lock(state_.mutex);
    state_.stopping = true;
  }
  state_.load_work.notify_all();
  state_.move_work.notify_all();
  state_.write_work.notify_all();
  for (std::thread& thread : threads_) thread.join();

  Aftermath aftermath(state_);
  const std::lock_guard lock(state_.mutex);
  std::vector<std::shared_ptr<SnapshotLoad>> unfinished;
  while (!state_.loads.empty()) unfinished.push_back(state_.loads.Pop());
  for (StoreLevel& level : state_.levels) {
    unfinished.insert(unfinished.end(), level.parked.begin(), level.parked.end());
    level.parked.clear();
  }
  for (const std::shared_ptr<SnapshotLoad>& load : unfinished) {
    FinishLoadLocked(*load, absl::UnavailableError("the server is shutting down"), aftermath);
  }
}

void TierMovers::WaitForWork(std::condition_variable& work, Lock& lock) {
  --state_.busy;
  if (IdleLocked()) state_.idle.notify_all();
  work.wait(lock);
  ++state_.busy;
}

void TierMovers::WaitForWorkOrTime(Lock& lock) {
  const bool stuck =
      std::any_of(state_.levels.begin(), state_.levels.end(), [](const auto& level) { return level.stuck; });
  if (!stuck && state_.pending.size() == 0 && state_.pins.empty()) {
    WaitForWork(state_.move_work, lock);
    return;
  }
  --state_.busy;
  if (IdleLocked()) state_.idle.notify_all();
  const bool timeout = state_.move_work.wait_for(lock, kPeriod) == std::cv_status::timeout;
  ++state_.busy;
  for (std::size_t level = 0; timeout && level < state_.levels.size(); ++level) {
    if (!state_.levels[level].stuck) continue;
    state_.levels[level].stuck = false;
    state_.CheckWatermarkLocked(level);
  }
}

bool TierMovers::IdleLocked() const {
  return state_.busy == 0 && state_.loads.empty() && state_.promotions.empty() && state_.writes.empty() &&
         state_.removals.empty() && state_.deletions.empty() &&
         DueForReliefLocked(0, state_.levels.size()) == state_.levels.size();
}

// Loading.

void TierMovers::RunLoader(kernels::Stream& stream) {
  Lock lock(state_.mutex);
  ++state_.busy;
  while (!state_.stopping) {
    if (state_.loads.empty()) {
      WaitForWork(state_.load_work, lock);
      continue;
    }
    Load(state_.loads.Pop(), stream, lock);
  }
  --state_.busy;
}

void TierMovers::Load(std::shared_ptr<SnapshotLoad> load, kernels::Stream& stream, Lock& lock) {
  SnapshotEntry& entry = *load->entry;
  const std::size_t level = state_.load_level();
  const std::shared_ptr<TierCopy> source = entry.copies[state_.last()];
  const SnapshotSpace& space = entry.space->identity;
  state_.index.SetWriting(entry, level, true);
  const std::int64_t left_before = state_.levels[level].left;
  lock.unlock();

  absl::StatusOr<SnapshotStore::Fetched> result = absl::NotFoundError("the snapshot has been deleted");
  std::shared_ptr<TierCopy> loaded;
  bool no_room = false;
  bool fits = true;
  if (source != nullptr) {
    absl::StatusOr<SnapshotMemory> memory = state_.Allocate(level, space, space.layers);
    absl::Status status = memory.status();
    no_room = !memory.ok();
    fits = state_.CheckFits(level, space).ok();
    if (memory.ok()) status = source->Load(memory->parts(), stream);
    if (status.ok()) {
      loaded = state_.levels[level].memory->Adopt(*std::move(memory));
      result = SnapshotStore::Fetched{loaded, entry.position};
    } else {
      result = status;
    }
  }

  {
    Aftermath aftermath(state_);
    lock.lock();
    state_.index.SetWriting(entry, level, false);
    StoreLevel& place = state_.levels[level];
    if (no_room && fits && absl::IsResourceExhausted(result.status())) {
      if (place.left != left_before) {  // there may be room now
        state_.loads.Push(std::move(load));
        return;
      }
      if (!load->last_try && !place.stuck && (place.relieving || state_.index.FirstToLeave(level) != nullptr)) {
        place.parked.push_back(std::move(load));
        state_.NotifyReliefLocked(level);
        return;
      }
    }
    if (no_room) {
      if (absl::IsResourceExhausted(result.status())) result = Exhausted(result.status().message(), kRetryAfter);
    } else if (loaded != nullptr) {
      ++state_.counters.promotions;
      if (!entry.removed) state_.index.SetCopy(entry, level, loaded);
    } else if (absl::IsUnavailable(result.status())) {
      // That says nothing about the snapshot, which is worth more than this one use of it.
      ++state_.counters.tier_errors;
      result = absl::UnavailableError("the snapshot cannot be read now");
    } else if (!entry.removed) {
      const bool damaged = absl::IsDataLoss(result.status());
      ++(damaged ? state_.counters.checksum_failures : state_.counters.tier_errors);
      aftermath.Log(absl::StrCat("a snapshot of cache fingerprint ", Quoted(space.fingerprint), " at position ",
                                 entry.position, " cannot be read and is dropped: ", result.status().ToString()));
      state_.RemoveLocked(entry, SnapshotEvent::Type::kEvicted, aftermath);
      if (!damaged) result = absl::NotFoundError("the snapshot cannot be read any more");
    }
    const bool promote = load->promote && !entry.removed && loaded != nullptr && level > 0;
    if (promote) state_.PromoteLocked(entry);
    FinishLoadLocked(*load, std::move(result), aftermath);
    lock.unlock();
    loaded.reset();
  }
  lock.lock();
}

void TierMovers::FinishLoadLocked(SnapshotLoad& load, absl::StatusOr<SnapshotStore::Fetched> result,
                                  Aftermath& aftermath) {
  aftermath.Finish(std::move(load.waiters), std::move(result));
  load.entry->load.reset();  // `load` may be gone now
}

// Moving.

void TierMovers::RunMover(kernels::Stream& stream) {
  Lock lock(state_.mutex);
  ++state_.busy;
  const std::size_t end = FirstLevelOfWriter();
  while (!state_.stopping) {
    if (!state_.ExpireLocked()) {
      lock.unlock();
      lock.lock();
      continue;
    }
    if (const std::size_t level = DueForReliefLocked(0, end); level < end) {
      Relieve(level, stream, lock);
    } else if (!state_.promotions.empty()) {
      std::shared_ptr<SnapshotEntry> entry = std::move(state_.promotions.front());
      state_.promotions.pop_front();
      Promote(std::move(entry), stream, lock);
    } else if (!state_.stopping) {
      WaitForWorkOrTime(lock);
    }
  }
  --state_.busy;
}

void TierMovers::Promote(std::shared_ptr<SnapshotEntry> entry, kernels::Stream& stream, Lock& lock) {
  entry->promotion_queued = false;
  std::shared_ptr<TierCopy> source = entry->memory_copy();
  if (entry->removed || entry->copies[0] != nullptr || source == nullptr) return;
  state_.index.SetWriting(*entry, 0, true);
  lock.unlock();
  const SnapshotSpace& space = entry->space->identity;
  absl::StatusOr<SnapshotMemory> memory = state_.Allocate(0, space, space.layers);
  std::shared_ptr<TierCopy> copy;
  absl::Status status = memory.status();
  if (memory.ok()) status = source->Load(memory->parts(), stream);
  if (status.ok()) copy = state_.levels[0].memory->Adopt(*std::move(memory));
  source.reset();
  {
    Aftermath aftermath(state_);
    lock.lock();
    state_.index.SetWriting(*entry, 0, false);
    entry->slow_uses = 0;
    if (copy != nullptr && !entry->removed) {
      state_.index.SetCopy(*entry, 0, std::move(copy));
      ++state_.counters.promotions;
    } else if (!status.ok() && !absl::IsResourceExhausted(status)) {
      ++state_.counters.tier_errors;
      aftermath.Log(
          absl::StrCat("a copy to the ", Name(state_.levels[0].tier->kind()), " tier failed: ", status.ToString()));
    }
    lock.unlock();
  }
  entry.reset();
  copy.reset();
  lock.lock();
}

// Writing.

void TierMovers::RunWriter(kernels::Stream& stream) {
  Lock lock(state_.mutex);
  ++state_.busy;
  const std::size_t first = FirstLevelOfWriter();
  const std::size_t end = state_.levels.size();
  while (!state_.stopping) {
    if (!state_.removals.empty() || !state_.deletions.empty()) {
      FinishDeletions(lock);
    } else if (const std::size_t level = DueForReliefLocked(first, end); level < end) {
      Relieve(level, stream, lock);
    } else if (!state_.writes.empty()) {
      std::shared_ptr<SnapshotEntry> entry = std::move(state_.writes.front());
      state_.writes.pop_front();
      state_.writing = true;
      if (!entry->removed && entry->copies[state_.last()] == nullptr) {
        CopyDown(entry, state_.last(), stream, lock);
      }
      lock.unlock();
      entry.reset();
      lock.lock();
      state_.writing = false;
      if (state_.writes.empty()) state_.idle.notify_all();
    } else {
      WaitForWork(state_.write_work, lock);
    }
  }
  // What has been dropped must not come back at the next start.
  FinishDeletions(lock);
  --state_.busy;
}

void TierMovers::EmptyRemovals(Lock& lock) {
  while (!state_.removals.empty()) {
    std::vector<std::shared_ptr<TierCopy>> removals = std::exchange(state_.removals, {});
    lock.unlock();
    for (const std::shared_ptr<TierCopy>& copy : removals) copy->Remove();
    removals.clear();
    lock.lock();
  }
}

void TierMovers::FinishDeletions(Lock& lock) {
  EmptyRemovals(lock);
  if (state_.deletions.empty()) return;
  std::vector<absl::AnyInvocable<void(absl::Status)>> deletions = std::exchange(state_.deletions, {});
  Tier& disk = *state_.levels[state_.last()].tier;
  lock.unlock();
  absl::Status status = disk.SyncRemovals();  // the operator is told what is wrong
  if (!status.ok()) {
    status = absl::UnavailableError(
        "what was deleted cannot be found any more, but may come back from disk when the server starts again");
  }
  for (absl::AnyInvocable<void(absl::Status)>& done : deletions) done(status);
  deletions.clear();
  lock.lock();
}

std::int64_t TierMovers::DropFor(const SnapshotEntry& entry, std::size_t level, Lock& lock) {
  std::int64_t dropped = 0;
  while (dropped < entry.bytes()) {
    SnapshotEntry* const victim = state_.index.FirstDroppable(level);
    if (victim == nullptr || !SnapshotIndex::Before(*victim, entry)) break;
    {
      Aftermath aftermath(state_);
      dropped += victim->bytes();
      state_.DropCopyLocked(*victim, level, aftermath);
      lock.unlock();
    }
    lock.lock();
  }
  if (state_.levels[level].memory == nullptr) EmptyRemovals(lock);
  return dropped;
}

TierMovers::Copied TierMovers::CopyDown(const std::shared_ptr<SnapshotEntry>& entry, std::size_t target,
                                        kernels::Stream& stream, Lock& lock) {
  StoreLevel& level = state_.levels[target];
  std::shared_ptr<TierCopy> source = entry->memory_copy();
  if (source == nullptr) return Copied::kDone;  // dropped meanwhile, and so is the reason to copy it
  state_.index.SetWriting(*entry, target, true);
  const SnapshotRecord record = entry->record();
  const absl::Status fits = state_.CheckFits(target, record.space);
  absl::StatusOr<std::shared_ptr<TierCopy>> copy;
  if (!fits.ok()) copy = fits;
  bool made_room = false;
  while (fits.ok()) {
    lock.unlock();
    copy = level.tier->Store(record, source->parts(), stream);
    lock.lock();
    if (!absl::IsResourceExhausted(copy.status()) || entry->removed) break;
    // A disk may be full for other reasons than ours: room for one snapshot has to be enough.
    if (made_room && level.memory == nullptr) break;
    if (DropFor(*entry, target, lock) == 0) break;
    made_room = true;
  }
  source.reset();
  Copied copied = Copied::kDone;
  {
    Aftermath aftermath(state_);
    state_.index.SetWriting(*entry, target, false);
    if (copy.ok()) {
      level.troubled = false;
      ++state_.counters.demotions;
      if (entry->removed) {
        state_.DiscardLocked(target, *std::move(copy));
      } else {
        state_.index.SetCopy(*entry, target, *std::move(copy));
      }
      state_.CheckWatermarkLocked(target);
    } else if (!entry->removed) {
      copied = absl::IsResourceExhausted(copy.status()) ? Copied::kNoRoom : Copied::kTrouble;
      const bool full = level.tier->used() > level.tier->capacity() - entry->bytes();  // of what goes after it
      if (copied == Copied::kTrouble || (level.memory == nullptr && !full)) {
        ++state_.counters.tier_errors;
        if (!std::exchange(level.troubled, true)) {
          aftermath.Log(absl::StrCat("the ", Name(level.tier->kind()),
                                     " tier takes no more snapshots: ", copy.status().ToString()));
        }
      }
    }
    lock.unlock();
  }
  lock.lock();
  return copied;
}

// Relief.

std::size_t TierMovers::FirstLevelOfWriter() const {
  return state_.has_disk() ? state_.last() - 1 : state_.levels.size();
}

std::size_t TierMovers::DueForReliefLocked(std::size_t first, std::size_t end) const {
  for (std::size_t n = end; n > first; --n) {
    const StoreLevel& level = state_.levels[n - 1];
    if (level.waiting || level.relieving || level.stuck) continue;
    if (level.wanted || !level.parked.empty() || (level.over && level.tier->used() > level.low_watermark)) return n - 1;
  }
  return end;
}

void TierMovers::Relieve(std::size_t level, kernels::Stream& stream, Lock& lock) {
  StoreLevel& place = state_.levels[level];
  SnapshotEntry* const victim = state_.index.FirstToLeave(level);
  if (victim == nullptr) {
    GiveUpReliefLocked(level);
    return;
  }
  const std::shared_ptr<SnapshotEntry> entry = victim->shared_from_this();
  bool drop = state_.index.Droppable(*entry, level);
  if (!drop) {
    const std::size_t target = level + 1;
    StoreLevel& below = state_.levels[target];
    const std::int64_t left_before = below.left;
    place.relieving = true;
    const Copied copied = CopyDown(entry, target, stream, lock);
    place.relieving = false;
    if (copied == Copied::kNoRoom && below.left != left_before && below.memory != nullptr) return;  // there may be now
    const bool still_there = !entry->removed && entry->copies[level] != nullptr && !entry->InUse(level);
    if (copied == Copied::kDone) {
      drop = still_there && state_.index.Droppable(*entry, level);
      // If somebody has begun to use it, it can go another time.
    } else if (target == state_.last() && still_there && entry->pins == 0) {
      drop = true;  // it has nowhere to go
    } else if (target != state_.last() && copied == Copied::kNoRoom && !below.stuck &&
               (below.relieving || state_.index.FirstToLeave(target) != nullptr)) {
      place.waiting = true;
      state_.WantRoomLocked(target);
      return;
    } else {
      GiveUpReliefLocked(level);
      return;
    }
  }
  {
    Aftermath aftermath(state_);
    if (drop) state_.DropCopyLocked(*entry, level, aftermath);
    lock.unlock();
  }
  lock.lock();
  RelievedLocked(level);
}

void TierMovers::RelievedLocked(std::size_t level) {
  StoreLevel& place = state_.levels[level];
  place.wanted = false;
  if (place.tier->used() <= place.low_watermark) place.over = false;
  RetryParkedLocked(level, false);
  if (level > 0 && state_.levels[level - 1].waiting) {
    state_.levels[level - 1].waiting = false;
    state_.NotifyReliefLocked(level - 1);
  }
}

void TierMovers::GiveUpReliefLocked(std::size_t level) {
  StoreLevel& place = state_.levels[level];
  place.wanted = false;
  place.stuck = true;  // still over, if it was: what is in use now can leave later
  RetryParkedLocked(level, true);
  if (level > 0 && state_.levels[level - 1].waiting) {
    state_.levels[level - 1].waiting = false;
    state_.NotifyReliefLocked(level - 1);
  }
}

void TierMovers::RetryParkedLocked(std::size_t level, bool last_try) {
  for (std::shared_ptr<SnapshotLoad>& load : state_.levels[level].parked) {
    load->last_try = last_try;
    state_.loads.Push(std::move(load));
    state_.load_work.notify_one();
  }
  state_.levels[level].parked.clear();
}

}  // namespace gdpcache::cache
