#include "server/engine/slot_transfer.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/copy_and_wait.h"
#include "server/cache/errors.h"
#include "server/engine/slot_memory.h"

namespace gdpcache::engine {
namespace {

using cache::InvalidField;

absl::Status CheckLayers(const cache::Geometry& geometry, absl::string_view prefix,
                         const std::vector<std::int64_t>& layers) {
  absl::flat_hash_map<std::int64_t, std::size_t> named;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::int64_t layer = layers[i];
    const std::string field = absl::StrCat(prefix, "layers[", i, "]");
    if (layer < 0 || layer >= geometry.layers) {
      return InvalidField(field, absl::StrCat("is ", layer, "; the cache has ", geometry.layers, " layers"));
    }
    const auto [first, inserted] = named.emplace(layer, i);
    if (!inserted) {
      return InvalidField(field, absl::StrCat("is ", layer, ", as is layers[", first->second, "]"));
    }
  }
  return absl::OkStatus();
}

/// How many states are selected. Spells the layers out where there are none; the slots are SlotTable's to check, but
/// for their number, which bounds the result.
absl::StatusOr<std::int64_t> CompleteSelection(const cache::Geometry& geometry, absl::string_view prefix,
                                               SlotSelection& selection) {
  if (selection.layers.empty()) {
    selection.layers = AllLayers(geometry);
  } else if (absl::Status status = CheckLayers(geometry, prefix, selection.layers); !status.ok()) {
    return status;
  }
  if (static_cast<std::int64_t>(selection.slots.size()) > geometry.slots) {
    return InvalidField(absl::StrCat(prefix, "slots"),
                        absl::StrCat("names ", selection.slots.size(), " slots; the cache has ", geometry.slots));
  }
  return static_cast<std::int64_t>(selection.slots.size() * selection.layers.size());
}

kernels::ByteRange Range(const cache::Cache& cache, StreamTensor tensor, std::int64_t layer, std::int64_t slot) {
  if (tensor == StreamTensor::kAuxiliary) return cache.pool().Auxiliary(layer, slot);
  return {cache.pool().State(layer, slot).data, static_cast<std::size_t>(cache.geometry().state_bytes())};
}

std::int64_t UnitBytes(const cache::Geometry& geometry, StreamTensor tensor) {
  return tensor == StreamTensor::kAuxiliary ? geometry.auxiliary_bytes : geometry.state_bytes();
}

}  // namespace

absl::StatusOr<std::shared_ptr<SlotReader>> SlotReader::Create(const Environment& environment, CallContext context,
                                                               SlotSelection selection, ContentsReady contents,
                                                               StreamPeer& peer, Done done) {
  const cache::Geometry& geometry = context.session->cache()->geometry();
  const absl::StatusOr<std::int64_t> count = CompleteSelection(geometry, "", selection);
  if (!count.ok()) return count.status();
  const std::int64_t bytes = *count * (geometry.state_bytes() + geometry.auxiliary_bytes);
  const std::int64_t piece = StagingPool::BlockSize(environment.options.segment_bytes);
  absl::StatusOr<std::shared_ptr<StagingAccount>> staging =
      environment.staging.Open(std::min(StagingPool::BlockSize(bytes), 2 * piece), StagingShare(context));
  if (!staging.ok()) return staging.status();
  return std::shared_ptr<SlotReader>(new SlotReader(environment, std::move(context), std::move(selection),
                                                    *std::move(staging), std::move(contents), peer, std::move(done)));
}

SlotReader::SlotReader(const Environment& environment, CallContext context, SlotSelection selection,
                       std::shared_ptr<StagingAccount> staging, ContentsReady contents, StreamPeer& peer, Done done)
    : OrderedCall(environment, std::move(context)),
      selection_(std::move(selection)),
      count_(static_cast<std::int64_t>(selection_.slots.size() * selection_.layers.size())),
      staging_(std::move(staging)),
      contents_(std::move(contents)),
      peer_(peer),
      done_(std::move(done)) {}

absl::StatusOr<Places> SlotReader::Arrive() {
  if (absl::Status status = cache().slots().CheckHeld(context().session->key(), selection_.slots, "slots");
      !status.ok()) {
    return status;
  }
  return Places{selection_.layers, selection_.slots};
}

bool SlotReader::HasStep() const { return unsent_ < environment().options.segment_bytes; }

absl::StatusOr<bool> SlotReader::RunStep(kernels::Stream& stream) {
  if (!told_) {
    told_ = true;
    SlotContents contents{.selection = selection_, .positions = {}};
    contents.positions.reserve(count_);
    for (const std::int64_t slot : selection_.slots) {
      for (const std::int64_t layer : selection_.layers) {
        contents.positions.push_back(cache().slots().Position(layer, slot));
      }
    }
    contents_(std::move(contents));
  }
  const cache::Geometry& geometry = cache().geometry();
  if (tensor_ == StreamTensor::kState && offset_ == count_ * geometry.state_bytes()) {
    tensor_ = StreamTensor::kAuxiliary;
    offset_ = 0;
  }
  if (offset_ < count_ * UnitBytes(geometry, tensor_)) {
    if (absl::Status status = SendPiece(stream); !status.ok()) return status;
  }
  const bool last = geometry.auxiliary_bytes > 0 && count_ > 0 ? tensor_ == StreamTensor::kAuxiliary : true;
  return last && offset_ == count_ * UnitBytes(geometry, tensor_);
}

absl::Status SlotReader::SendPiece(kernels::Stream& stream) {
  const std::int64_t unit = UnitBytes(cache().geometry(), tensor_);
  const auto layers = static_cast<std::int64_t>(selection_.layers.size());
  const std::int64_t size = std::min(environment().options.segment_bytes, count_ * unit - offset_);
  absl::StatusOr<StagingBuffer> acquired = staging_->Acquire(size);
  if (!acquired.ok()) return acquired.status();
  const auto buffer = std::make_shared<StagingBuffer>(*std::move(acquired));
  std::vector<kernels::ByteCopy> copies;
  for (std::int64_t done = 0; done < size;) {
    const std::int64_t at = offset_ + done;
    const std::int64_t index = at / unit;
    const std::int64_t within = at % unit;
    const std::int64_t bytes = std::min(unit - within, size - done);
    const kernels::ByteRange range =
        Range(cache(), tensor_, selection_.layers[index % layers], selection_.slots[index / layers]);
    copies.push_back(
        {buffer->data() + done, static_cast<const std::byte*>(range.data) + within, static_cast<std::size_t>(bytes)});
    done += bytes;
  }
  if (absl::Status status = CopyAndWait(environment().backend, copies, stream); !status.ok()) return status;
  {
    const std::lock_guard lock(mutex());
    unsent_ += size;
  }
  peer_.Output({tensor_, offset_, buffer->data(), size, buffer});
  offset_ += size;
  return absl::OkStatus();
}

void SlotReader::OutputSent(std::int64_t bytes) {
  Lock lock(mutex());
  unsent_ -= bytes;
  AdvanceLocked(std::move(lock));
}

void SlotReader::LetGo() { staging_->EndReservation(); }

absl::StatusOr<std::shared_ptr<SlotWriter>> SlotWriter::Create(const Environment& environment, CallContext context,
                                                               const WriteSlotsRequest& request, Done done) {
  const cache::Geometry& geometry = context.session->cache()->geometry();
  SlotSelection selection = request.selection;
  const absl::StatusOr<std::int64_t> count = CompleteSelection(geometry, "contents.", selection);
  if (!count.ok()) return count.status();
  std::vector<std::int64_t> positions = request.positions;
  if (positions.empty()) positions.resize(*count);
  if (static_cast<std::int64_t>(positions.size()) != *count) {
    return InvalidField("contents.positions",
                        absl::StrCat("has ", positions.size(), " entries; ", *count, " states are selected"));
  }
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] > kMaxPosition) {
      return InvalidField(absl::StrCat("contents.positions[", i, "]"),
                          absl::StrCat("is ", positions[i], "; it must be from 0 to ", kMaxPosition));
    }
  }

  const auto slots = static_cast<std::int64_t>(selection.slots.size());
  const auto layers = static_cast<std::int64_t>(selection.layers.size());
  if (!request.state.present) return InvalidField("contents.state", "is missing");
  const absl::StatusOr<std::int64_t> state_bytes =
      CheckTensor("contents.state", request.state, ElementTypeOf(geometry.state_dtype),
                  {slots, layers, geometry.heads, geometry.key_dim, geometry.value_dim}, {}, TensorTransport::kStream);
  if (!state_bytes.ok()) return state_bytes.status();
  std::int64_t auxiliary_bytes = 0;
  if (request.auxiliary.present) {
    if (geometry.auxiliary_bytes == 0) {
      return InvalidField("contents.auxiliary", "is given; the cache keeps 0 auxiliary bytes");
    }
    const absl::StatusOr<std::int64_t> bytes =
        CheckTensor("contents.auxiliary", request.auxiliary, ElementType::kUint8,
                    {slots, layers, geometry.auxiliary_bytes}, {}, TensorTransport::kStream);
    if (!bytes.ok()) return bytes.status();
    auxiliary_bytes = *bytes;
  }

  absl::StatusOr<std::shared_ptr<StagingAccount>> staging = environment.staging.Open(
      StagingPool::BlockSize(*state_bytes) + StagingPool::BlockSize(auxiliary_bytes), StagingShare(context));
  if (!staging.ok()) return staging.status();
  Part state{.cursor = {.name = "state", .size = *state_bytes}, .buffer = nullptr};
  Part auxiliary{.cursor = {.name = "auxiliary", .size = auxiliary_bytes}, .buffer = nullptr};
  for (Part* part : {&state, &auxiliary}) {
    absl::StatusOr<StagingBuffer> buffer = (*staging)->Acquire(part->cursor.size);
    if (!buffer.ok()) return buffer.status();
    part->buffer = std::make_shared<StagingBuffer>(*std::move(buffer));
  }
  return std::shared_ptr<SlotWriter>(new SlotWriter(environment, std::move(context), std::move(selection),
                                                    std::move(positions), *std::move(staging), std::move(state),
                                                    std::move(auxiliary), std::move(done)));
}

SlotWriter::SlotWriter(const Environment& environment, CallContext context, SlotSelection selection,
                       std::vector<std::int64_t> positions, std::shared_ptr<StagingAccount> staging, Part state,
                       Part auxiliary, Done done)
    : OrderedCall(environment, std::move(context)),
      selection_(std::move(selection)),
      positions_(std::move(positions)),
      staging_(std::move(staging)),
      done_(std::move(done)),
      state_(std::move(state)),
      auxiliary_(std::move(auxiliary)) {}

absl::StatusOr<Places> SlotWriter::Arrive() {
  if (absl::Status status = cache().slots().CheckHeld(context().session->key(), selection_.slots, "contents.slots");
      !status.ok()) {
    return status;
  }
  return Places{selection_.layers, selection_.slots};
}

absl::StatusOr<absl::Span<std::byte>> SlotWriter::Place(StreamTensor tensor, std::uint64_t offset, std::uint64_t size) {
  Lock lock(mutex());
  placing_in_.reset();
  if (const std::optional<absl::Status> ended = EndedLocked(); ended.has_value()) return *ended;
  absl::Status status;
  placing_ = tensor == StreamTensor::kState ? &state_ : &auxiliary_;
  if ((tensor != StreamTensor::kState && tensor != StreamTensor::kAuxiliary) || placing_->cursor.size == 0) {
    status = InvalidField("data.tensor", "names a tensor that is not in the header");
  } else {
    status = placing_->cursor.CheckFrame(offset, size);
  }
  if (!status.ok()) {
    FailLocked(std::move(lock), status);
    return status;
  }
  placing_in_ = placing_->buffer;
  return absl::MakeSpan(placing_in_->data() + offset, size);
}

void SlotWriter::Placed(std::size_t size) {
  const std::lock_guard lock(mutex());
  placing_in_.reset();
  placing_->cursor.received += static_cast<std::int64_t>(size);
}

void SlotWriter::EndOfInput() {
  Lock lock(mutex());
  ended_ = true;
  for (const Part* part : {&state_, &auxiliary_}) {
    if (absl::Status status = part->cursor.CheckComplete(); !status.ok()) {
      return FailLocked(std::move(lock), std::move(status));
    }
  }
  AdvanceLocked(std::move(lock));
}

absl::StatusOr<bool> SlotWriter::RunStep(kernels::Stream& stream) {
  std::vector<kernels::ByteCopy> copies;
  for (const auto& [part, tensor] :
       {std::pair(&state_, StreamTensor::kState), std::pair(&auxiliary_, StreamTensor::kAuxiliary)}) {
    if (part->cursor.size == 0) continue;
    const std::byte* from = part->buffer->data();
    for (const std::int64_t slot : selection_.slots) {
      for (const std::int64_t layer : selection_.layers) {
        const kernels::ByteRange range = Range(cache(), tensor, layer, slot);
        copies.push_back({range.data, from, range.size});
        from += range.size;
      }
    }
  }
  if (absl::Status status = BeginCommit(); !status.ok()) return status;
  if (absl::Status status = CopyAndWait(environment().backend, copies, stream); !status.ok()) return status;
  std::size_t index = 0;
  for (const std::int64_t slot : selection_.slots) {
    for (const std::int64_t layer : selection_.layers) cache().slots().SetPosition(layer, slot, positions_[index++]);
  }
  return true;
}

void SlotWriter::LetGo() {
  const std::lock_guard lock(mutex());
  state_.buffer.reset();
  auxiliary_.buffer.reset();
  staging_->EndReservation();
}

}  // namespace gdpcache::engine
