#ifndef GDPCACHE_CLIENT_LIBRARY_PIECE_SCHEDULE_H_
#define GDPCACHE_CLIENT_LIBRARY_PIECE_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/library/frame_encoding.h"
#include "gdpcache/prefill.h"

namespace gdpcache::client {

/// The order in which the bytes of a call's tensors go out: interleaved by token, so that the server can compute while
/// it receives. A group of rows of k, w, u and g after the other; each sequence's row of initial_state before the
/// sequence's first token; auxiliary_state, which the server needs last, at the end.
class PieceSchedule {
 public:
  /// `call` and what it points to must outlive the schedule. INVALID_ARGUMENT when a tensor has no size or no data.
  static absl::StatusOr<PieceSchedule> Make(const PrefillCall& call);

  /// The next piece, at most kMaxPayloadBytes long, or nothing at the end.
  std::optional<Piece> Next();

 private:
  /// A tensor on its way.
  struct Lane {
    v1::TensorId tensor;
    const std::byte* data;
    std::int64_t size;       // in bytes
    std::int64_t row_bytes;  // of a token, or of a sequence; `size` where the shape has no rows
    std::int64_t sent = 0;
    std::int64_t target = 0;  // what the current group sends up to
  };

  explicit PieceSchedule(const PrefillCall& call) : call_(&call) {}
  absl::Status Add(v1::TensorId tensor, const char* name, const ConstTensor& view, std::size_t row_rank);
  void NextGroup();

  const PrefillCall* call_;
  std::vector<Lane> lanes_;  // in the order within a group
  std::int64_t rows_ = 0;    // of the longest token lane
  std::int64_t rows_per_group_ = 1;
  std::int64_t group_end_ = 0;        // rows of all groups so far
  std::int64_t sequences_ = 0;        // with a row in initial_state
  std::int64_t sequences_begun_ = 0;  // whose first token lies in the groups so far
};

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_PIECE_SCHEDULE_H_
