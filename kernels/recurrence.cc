#include "kernels/recurrence.h"

#include "absl/strings/str_cat.h"

namespace gdpcache::kernels {
namespace {

absl::Status Invalid(std::size_t sequence, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("sequence ", sequence, ": ", what));
}

}  // namespace

absl::Status ValidateRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences) {
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
  if (shape.num_householder < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_householder is ", shape.num_householder, "; it must be at least 1"));
  }
  if (shape.chunk_size != 16 && shape.chunk_size != 32 && shape.chunk_size != 64 && shape.chunk_size != 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_size is ", shape.chunk_size, "; it must be 16, 32, 64 or 128"));
  }
  const std::int64_t boundary_tokens = shape.num_householder * shape.chunk_size;
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const Sequence& sequence = sequences[n];
    if (sequence.length < 0 || sequence.length % shape.num_householder != 0) {
      return Invalid(n, absl::StrCat("length is ", sequence.length, "; it must be a multiple of num_householder ",
                                     shape.num_householder));
    }
    if (sequence.length > 0 && (sequence.k == nullptr || sequence.w == nullptr || sequence.u == nullptr)) {
      return Invalid(n, absl::StrCat("k, w or u is missing for ", sequence.length, " expanded tokens"));
    }
    const std::int64_t boundaries = (sequence.length + boundary_tokens - 1) / boundary_tokens;
    std::int64_t previous = 0;
    for (const BoundaryStore& store : sequence.boundaries) {
      if (store.boundary < previous || store.boundary >= boundaries) {
        return Invalid(n, absl::StrCat("boundary ", store.boundary, " must ascend and be below ", boundaries));
      }
      if (store.destination.data == nullptr) {
        return Invalid(n, absl::StrCat("boundary ", store.boundary, " has no destination"));
      }
      previous = store.boundary;
    }
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::kernels
