#include "client/library/prefill_layout.h"

#include <utility>

namespace gdpcache::client {
namespace {

constexpr std::int64_t kDefaultChunkSize = 64;

/// Numbers of sequences and of boundary states.
struct Counts {
  std::int64_t sequences = 0;
  std::int64_t boundaries = 0;
};

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// T as the shape of u tells, or nothing where that is not [T, H, V] or [batch, T / batch, H, V].
std::optional<std::int64_t> ExpandedTokens(const ConstTensor& u) {
  if (u.shape.size() == 3) return u.shape[0];
  if (u.shape.size() != 4 || u.shape[0] < 0 || u.shape[1] < 0) return std::nullopt;
  std::int64_t tokens = 0;
  if (__builtin_mul_overflow(u.shape[0], u.shape[1], &tokens)) return std::nullopt;
  return tokens;
}

std::optional<Counts> Count(const PrefillCall& call, std::int64_t num_householder, std::int64_t chunk_size) {
  if (num_householder < 1 || chunk_size < 1) return std::nullopt;
  const std::optional<std::int64_t> tokens = ExpandedTokens(call.u);
  if (!tokens || *tokens < 0) return std::nullopt;
  Counts counts;
  if (!call.cu_seqlens.empty()) {
    // Boundaries within 0 .. T that never decrease: their differences cannot overflow.
    counts.sequences = static_cast<std::int64_t>(call.cu_seqlens.size()) - 1;
    for (std::size_t n = 0; n + 1 < call.cu_seqlens.size(); ++n) {
      const std::int64_t begin = call.cu_seqlens[n];
      const std::int64_t end = call.cu_seqlens[n + 1];
      if (begin < 0 || end < begin || end > *tokens) return std::nullopt;
      counts.boundaries += CeilDiv((end - begin) / num_householder, chunk_size);
    }
    return counts;
  }
  counts.sequences = call.batch == 0 ? 1 : call.batch;
  if (counts.sequences < 1) return std::nullopt;
  // No overflow: there are no more boundaries than tokens.
  counts.boundaries = counts.sequences * CeilDiv(*tokens / counts.sequences / num_householder, chunk_size);
  return counts;
}

absl::StatusOr<ResultLayout> Layout(DataType dtype, std::vector<std::int64_t> shape) {
  const absl::StatusOr<std::int64_t> size = ByteSize(dtype, shape);
  if (!size.ok()) return size.status();
  return ResultLayout{dtype, std::move(shape), *size};
}

}  // namespace

absl::StatusOr<PrefillLayout> LayOutResults(const PrefillCall& call, const CacheGeometry& geometry) {
  PrefillLayout layout;
  const std::optional<Counts> counts =
      Count(call, call.num_householder == 0 ? geometry.num_householder : call.num_householder,
            call.chunk_size == 0 ? kDefaultChunkSize : call.chunk_size);
  if (!counts) return layout;
  const auto states = [&](std::int64_t count) {
    return std::vector<std::int64_t>{count, geometry.heads, geometry.key_dim, geometry.value_dim};
  };
  if (call.states != States::kNone) {
    absl::StatusOr<ResultLayout> h = Layout(
        call.states_dtype.value_or(call.k.dtype),
        states(call.states == States::kAll ? counts->boundaries : static_cast<std::int64_t>(call.selected.size())));
    if (!h.ok()) return h.status();
    layout.h = *std::move(h);
  }
  if (call.save_new_value) {
    absl::StatusOr<ResultLayout> v_new = Layout(call.u.dtype, call.u.shape);
    if (!v_new.ok()) return v_new.status();
    layout.v_new = *std::move(v_new);
  }
  if (call.output_final_state) {
    absl::StatusOr<ResultLayout> final_state = Layout(DataType::kFloat32, states(counts->sequences));
    if (!final_state.ok()) return final_state.status();
    layout.final_state = *std::move(final_state);
  }
  return layout;
}

}  // namespace gdpcache::client
