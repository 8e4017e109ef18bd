#include "kernels/recurrence.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gdpcache::kernels {
namespace {

/// Names a part of an argument in messages: "sequences[3].boundaries[1].destination". Thousands are made for one that
/// is ever written.
struct Where {
  absl::string_view list;
  std::size_t index = 0;
  absl::string_view inner_list = {};  // empty: none
  std::size_t inner_index = 0;
  absl::string_view part = {};

  Where Part(absl::string_view name) const {
    Where where = *this;
    where.part = name;
    return where;
  }
};

absl::Status Invalid(const Where& where, const std::string& what) {
  const std::string inner =
      where.inner_list.empty() ? "" : absl::StrCat(".", where.inner_list, "[", where.inner_index, "]");
  return absl::InvalidArgumentError(absl::StrCat(where.list, "[", where.index, "]", inner, where.part, what));
}

absl::Status CheckDimensions(const RecurrenceShape& shape) {
  if (shape.heads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("heads is ", shape.heads, "; it must be at least 1"));
  }
  if (shape.key_dim < 1 || shape.key_dim > kMaxKeyDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("key_dim is ", shape.key_dim, "; it must be from 1 to ", kMaxKeyDim));
  }
  if (shape.value_dim < 1 || shape.value_dim > kMaxValueDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("value_dim is ", shape.value_dim, "; it must be from 1 to ", kMaxValueDim));
  }
  return absl::OkStatus();
}

/// A state whose heads overlap would be a mistake, and a race when it is written.
absl::Status CheckHeadStride(const RecurrenceShape& shape, const ConstStateView& view, const Where& where) {
  const std::int64_t elements = shape.key_dim * shape.value_dim;
  if (view.data == nullptr || shape.heads == 1 || view.head_stride >= elements) return absl::OkStatus();
  return Invalid(where, absl::StrCat(".head_stride is ", view.head_stride, "; a head has ", elements, " elements"));
}

absl::Status CheckBoundaries(const RecurrenceShape& shape, const Sequence& sequence, const Where& where) {
  const std::int64_t chunks = sequence.length == 0 ? 0 : (sequence.length - 1) / shape.chunk_size + 1;
  const std::int64_t boundaries = chunks == 0 ? 0 : (chunks - 1) / shape.num_householder + 1;
  std::int64_t previous = 0;
  for (std::size_t i = 0; i < sequence.boundaries.size(); ++i) {
    const BoundaryStore& store = sequence.boundaries[i];
    const Where which = {where.list, where.index, "boundaries", i, ""};
    if (store.boundary < previous || store.boundary >= boundaries) {
      return Invalid(
          which, absl::StrCat(" is ", store.boundary, "; it must be at least ", previous, " and below ", boundaries));
    }
    if (store.destination.data == nullptr) return Invalid(which, " has no destination");
    if (absl::Status status = CheckHeadStride(shape, store.destination, which.Part(".destination")); !status.ok()) {
      return status;
    }
    previous = store.boundary;
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const RecurrenceShape& shape, const Sequence& sequence, const Where& where) {
  if (sequence.length < 0 || sequence.length % shape.num_householder != 0) {
    return Invalid(where, absl::StrCat(".length is ", sequence.length, "; it must be a multiple of num_householder ",
                                       shape.num_householder));
  }
  if (sequence.length > 0 && (sequence.k == nullptr || sequence.w == nullptr || sequence.u == nullptr)) {
    return Invalid(where, absl::StrCat(": k, w or u is missing for ", sequence.length, " expanded tokens"));
  }
  for (const auto& [view, name] : {std::pair<ConstStateView, const char*>{sequence.initial_state, ".initial_state"},
                                   {sequence.slot, ".slot"},
                                   {sequence.final_state, ".final_state"}}) {
    if (absl::Status status = CheckHeadStride(shape, view, where.Part(name)); !status.ok()) return status;
  }
  return CheckBoundaries(shape, sequence, where);
}

}  // namespace

absl::Status ValidateRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences) {
  if (absl::Status status = CheckDimensions(shape); !status.ok()) return status;
  if (shape.num_householder < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_householder is ", shape.num_householder, "; it must be at least 1"));
  }
  if (shape.chunk_size != 16 && shape.chunk_size != 32 && shape.chunk_size != 64 && shape.chunk_size != 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_size is ", shape.chunk_size, "; it must be 16, 32, 64 or 128"));
  }
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    if (absl::Status status = CheckSequence(shape, sequences[n], {.list = "sequences", .index = n}); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateStateCopies(const RecurrenceShape& shape, absl::Span<const StateCopy> copies) {
  if (absl::Status status = CheckDimensions(shape); !status.ok()) return status;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const Where where = {.list = "copies", .index = i};
    if (copies[i].destination.data == nullptr) return Invalid(where, " has no destination");
    absl::Status status = CheckHeadStride(shape, copies[i].destination, where.Part(".destination"));
    status.Update(CheckHeadStride(shape, copies[i].source, where.Part(".source")));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::kernels
