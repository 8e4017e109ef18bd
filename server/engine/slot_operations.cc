#include "server/engine/slot_operations.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "kernels/copy_and_wait.h"
#include "server/cache/errors.h"
#include "server/engine/distinct_values.h"
#include "server/engine/ordered_call.h"
#include "server/engine/slot_memory.h"

namespace gdpcache::engine {
namespace {

absl::Status ZeroSlots(const Environment& environment, const cache::Cache& cache, absl::Span<const std::int64_t> slots,
                       kernels::Stream& stream) {
  std::vector<kernels::ByteRange> ranges;
  for (const std::int64_t slot : slots) {
    const std::vector<kernels::ByteRange> more = SlotRanges(cache, slot);
    ranges.insert(ranges.end(), more.begin(), more.end());
  }
  if (absl::Status status = environment.backend.ZeroBytes(ranges, stream); !status.ok()) return status;
  return environment.backend.Synchronize(stream);
}

class AcquireSlotsCall final : public OneStepCall {
 public:
  AcquireSlotsCall(const Environment& environment, CallContext context, std::int64_t count, SlotsDone done)
      : OneStepCall(environment, std::move(context)), count_(count), done_(std::move(done)) {}

 private:
  absl::StatusOr<Places> Arrive() override {
    // A count that is none is for the slot table to refuse.
    cache::Session& session = *context().session;
    const std::int64_t counted = std::max<std::int64_t>(count_, 0);
    if (absl::Status status = session.TakeSlots(counted); !status.ok()) return status;
    absl::StatusOr<std::vector<std::int64_t>> slots = cache().slots().Acquire(session.key(), count_);
    if (!slots.ok()) {
      session.GiveBackSlots(counted);
      return slots.status();
    }
    slots_ = *std::move(slots);
    return Places{AllLayers(cache().geometry()), slots_};
  }

  Executor::Here MayRunHere() const override { return HereIfFew(count_); }

  absl::Status Execute(kernels::Stream& stream) override {
    if (absl::Status status = BeginCommit(); !status.ok()) return status;
    return ZeroSlots(environment(), cache(), slots_, stream);
  }

  void Withdraw() override {
    const std::lock_guard arrival(cache().arrivals());
    if (cache().slots().BeginRelease(context().session->key(), slots_, "slots").ok()) {
      cache().slots().FinishRelease(slots_);
      context().session->GiveBackSlots(static_cast<std::int64_t>(slots_.size()));
    }
  }

  void Finish(absl::Status status) override { done_(ResultOr(std::move(status), std::move(slots_))); }

  const std::int64_t count_;
  SlotsDone done_;
  std::vector<std::int64_t> slots_;
};

class ReleaseSlotsCall final : public OneStepCall {
 public:
  ReleaseSlotsCall(const Environment& environment, CallContext context, std::vector<std::int64_t> slots, Done done)
      : OneStepCall(environment, std::move(context)), slots_(std::move(slots)), done_(std::move(done)) {}

 private:
  absl::StatusOr<Places> Arrive() override {
    if (absl::Status status = cache().slots().BeginRelease(context().session->key(), slots_, "slots"); !status.ok()) {
      return status;
    }
    context().session->GiveBackSlots(static_cast<std::int64_t>(slots_.size()));
    return Places{AllLayers(cache().geometry()), slots_};
  }
  Executor::Here MayRunHere() const override { return Executor::Here::kAlways; }
  bool IsCancellable() const override { return false; }
  bool UsesStream() const override { return false; }  // so nothing can fail, and no slot is kept by nobody
  absl::Status Execute(kernels::Stream&) override {
    cache().slots().FinishRelease(slots_);
    return absl::OkStatus();
  }
  void Finish(absl::Status status) override { done_(std::move(status)); }

  const std::vector<std::int64_t> slots_;
  Done done_;
};

class ResetSlotsCall final : public OneStepCall {
 public:
  ResetSlotsCall(const Environment& environment, CallContext context, std::vector<std::int64_t> slots, Done done)
      : OneStepCall(environment, std::move(context)), slots_(std::move(slots)), done_(std::move(done)) {}

 private:
  absl::StatusOr<Places> Arrive() override {
    if (absl::Status status = cache().slots().CheckHeld(context().session->key(), slots_, "slots"); !status.ok()) {
      return status;
    }
    return Places{AllLayers(cache().geometry()), slots_};
  }

  Executor::Here MayRunHere() const override { return HereIfFew(std::ssize(slots_)); }

  absl::Status Execute(kernels::Stream& stream) override {
    if (absl::Status status = BeginCommit(); !status.ok()) return status;
    if (absl::Status status = ZeroSlots(environment(), cache(), slots_, stream); !status.ok()) return status;
    for (const std::int64_t slot : slots_) {
      for (std::int64_t layer = 0; layer < cache().geometry().layers; ++layer) {
        cache().slots().SetPosition(layer, slot, 0);
      }
    }
    return absl::OkStatus();
  }

  void Finish(absl::Status status) override { done_(std::move(status)); }

  const std::vector<std::int64_t> slots_;
  Done done_;
};

/// Copies in one go: what a destination would overwrite before somebody has read it is set aside first.
class CopySlotsCall final : public OneStepCall {
 public:
  CopySlotsCall(const Environment& environment, CallContext context, std::vector<SlotCopyRequest> copies,
                std::vector<SlotMove> moves, std::vector<std::int64_t> aside, std::shared_ptr<StagingAccount> staging,
                Done done)
      : OneStepCall(environment, std::move(context)),
        copies_(std::move(copies)),
        moves_(std::move(moves)),
        aside_(std::move(aside)),
        staging_(std::move(staging)),
        done_(std::move(done)) {}

 private:
  absl::StatusOr<Places> Arrive() override {
    const cache::SessionKey session = context().session->key();
    absl::flat_hash_set<std::int64_t> named;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const SlotCopyRequest& copy = copies_[i];
      const std::string field = absl::StrCat("copies[", i, "].");
      const cache::SlotTable& table = cache().slots();
      absl::Status status = table.CheckSlotHeld(session, copy.source, absl::StrCat(field, "source"));
      status.Update(table.CheckHeld(session, copy.destinations, absl::StrCat(field, "destinations")));
      if (!status.ok()) return status;
      named.insert(copy.source);
      named.insert(copy.destinations.begin(), copy.destinations.end());
    }
    return Places{AllLayers(cache().geometry()), {named.begin(), named.end()}};
  }

  Executor::Here MayRunHere() const override { return HereIfFew(std::ssize(moves_) + std::ssize(aside_)); }

  absl::Status Execute(kernels::Stream& stream) override {
    std::vector<StagingBuffer> buffers;
    absl::flat_hash_map<std::int64_t, std::vector<kernels::ByteRange>> sources;
    std::vector<kernels::ByteCopy> copies;
    for (const std::int64_t slot : aside_) {
      absl::StatusOr<StagingBuffer> buffer = staging_->Acquire(SlotBytes(cache().geometry()));
      if (!buffer.ok()) return buffer.status();
      std::byte* place = buffer->data();
      for (const kernels::ByteRange& range : SlotRanges(cache(), slot)) {
        copies.push_back({place, range.data, range.size});
        sources[slot].push_back({place, range.size});
        place += range.size;
      }
      buffers.push_back(*std::move(buffer));
    }
    if (!copies.empty()) {
      if (absl::Status status = CopyAndWait(environment().backend, copies, stream); !status.ok()) return status;
    }

    copies.clear();
    for (const SlotMove& move : moves_) {
      const auto aside = sources.find(move.source);
      AppendCopies(SlotRanges(cache(), move.destination),
                   aside != sources.end() ? aside->second : SlotRanges(cache(), move.source), copies);
    }
    if (absl::Status status = BeginCommit(); !status.ok()) return status;
    if (absl::Status status = CopyAndWait(environment().backend, copies, stream); !status.ok()) return status;
    for (std::int64_t layer = 0; layer < cache().geometry().layers; ++layer) {
      std::vector<std::int64_t> positions;
      positions.reserve(moves_.size());
      for (const SlotMove& move : moves_) positions.push_back(cache().slots().Position(layer, move.source));
      for (std::size_t i = 0; i < moves_.size(); ++i) {
        cache().slots().SetPosition(layer, moves_[i].destination, positions[i]);
      }
    }
    return absl::OkStatus();
  }

  void LetGo() override { staging_.reset(); }
  void Finish(absl::Status status) override { done_(std::move(status)); }

  const std::vector<SlotCopyRequest> copies_;
  const std::vector<SlotMove> moves_;
  const std::vector<std::int64_t> aside_;  // slots that are both read and overwritten
  std::shared_ptr<StagingAccount> staging_;
  Done done_;
};

}  // namespace

std::vector<SlotMove> ResolveCopies(absl::Span<const SlotCopyRequest> copies) {
  absl::flat_hash_map<std::int64_t, std::int64_t> content;  // by slot, where it differs
  const auto content_of = [&content](std::int64_t slot) {
    const auto found = content.find(slot);
    return found == content.end() ? slot : found->second;
  };
  for (const SlotCopyRequest& copy : copies) {
    for (const std::int64_t destination : copy.destinations) content[destination] = content_of(copy.source);
  }
  std::vector<SlotMove> moves;
  for (const SlotCopyRequest& copy : copies) {
    for (const std::int64_t destination : copy.destinations) {
      if (content[destination] != destination) moves.push_back({destination, content[destination]});
    }
  }
  return moves;
}

absl::StatusOr<std::shared_ptr<Call>> MakeAcquireSlots(const Environment& environment, CallContext context,
                                                       std::int64_t count, SlotsDone done) {
  if (count < 1) return cache::InvalidField("count", absl::StrCat("is ", count, "; it must be at least 1"));
  return std::make_shared<AcquireSlotsCall>(environment, std::move(context), count, std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> MakeReleaseSlots(const Environment& environment, CallContext context,
                                                       std::vector<std::int64_t> slots, Done done) {
  return std::make_shared<ReleaseSlotsCall>(environment, std::move(context), std::move(slots), std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> MakeResetSlots(const Environment& environment, CallContext context,
                                                     std::vector<std::int64_t> slots, Done done) {
  return std::make_shared<ResetSlotsCall>(environment, std::move(context), std::move(slots), std::move(done));
}

absl::StatusOr<std::shared_ptr<Call>> MakeCopySlots(const Environment& environment, CallContext context,
                                                    std::vector<SlotCopyRequest> copies, Done done) {
  // More cannot be right, and every entry takes time and memory: some of the time with the cache's arrivals locked.
  std::size_t named = 0;
  for (const SlotCopyRequest& copy : copies) named += copy.destinations.size();
  const std::int64_t slots = context.session->cache()->geometry().slots;
  if (std::max(copies.size(), named) > static_cast<std::size_t>(slots)) {
    return cache::InvalidField("copies", absl::StrCat("has ", copies.size(), " entries with ", named,
                                                      " destinations; the cache has ", cache::Counted(slots, "slot")));
  }
  DistinctValues destinations("destinations");
  for (std::size_t i = 0; i < copies.size(); ++i) {
    for (std::size_t j = 0; j < copies[i].destinations.size(); ++j) {
      absl::Status status = destinations.Add(absl::StrCat(copies[i].destinations[j]),
                                             absl::StrCat("copies[", i, "].destinations[", j, "]"));
      if (!status.ok()) return status;
    }
  }
  std::vector<SlotMove> moves = ResolveCopies(copies);
  absl::flat_hash_set<std::int64_t> overwritten;
  for (const SlotMove& move : moves) overwritten.insert(move.destination);
  std::vector<std::int64_t> aside;
  for (const SlotMove& move : moves) {
    if (overwritten.erase(move.source) > 0) aside.push_back(move.source);
  }
  const std::int64_t slot_bytes = StagingPool::BlockSize(SlotBytes(context.session->cache()->geometry()));
  if (static_cast<std::int64_t>(aside.size()) > environment.staging.budget() / slot_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the copies need ", aside.size(), " slots of ", slot_bytes,
                                                     " bytes set aside; the server has ", environment.staging.budget(),
                                                     " bytes of staging memory"));
  }
  absl::StatusOr<std::shared_ptr<StagingAccount>> staging =
      environment.staging.Open(static_cast<std::int64_t>(aside.size()) * slot_bytes, StagingShare(context));
  if (!staging.ok()) return staging.status();
  return std::make_shared<CopySlotsCall>(environment, std::move(context), std::move(copies), std::move(moves),
                                         std::move(aside), *std::move(staging), std::move(done));
}

}  // namespace gdpcache::engine
