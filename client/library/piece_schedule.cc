#include "client/library/piece_schedule.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gdpcache::client {
namespace {

/// Groups end at multiples of this many rows where they are long enough, as no chunk is longer.
constexpr std::int64_t kRowAlignment = 128;

bool IsTokenLane(v1::TensorId tensor) {
  return tensor == v1::TENSOR_ID_K || tensor == v1::TENSOR_ID_W || tensor == v1::TENSOR_ID_U ||
         tensor == v1::TENSOR_ID_G;
}

}  // namespace

absl::Status PieceSchedule::Add(v1::TensorId tensor, const char* name, const ConstTensor& view, std::size_t row_rank) {
  const absl::StatusOr<std::int64_t> size = ByteSize(view.dtype, view.shape);
  if (!size.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", size.status().message()));
  if (*size > 0 && view.data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has ", *size, " bytes and its data is a null pointer"));
  }
  Lane lane{tensor, static_cast<const std::byte*>(view.data), *size, *size};
  if (*size > 0 && view.shape.size() > row_rank) {
    std::int64_t rows = 1;
    for (std::size_t i = 0; i + row_rank < view.shape.size(); ++i) rows *= view.shape[i];
    lane.row_bytes = *size / rows;
    if (IsTokenLane(tensor)) rows_ = std::max(rows_, rows);
    if (tensor == v1::TENSOR_ID_INITIAL_STATE) {
      const std::int64_t boundaries = static_cast<std::int64_t>(call_->cu_seqlens.size());
      sequences_ = boundaries > 0 ? std::min(rows, boundaries - 1) : rows;
    }
  }
  lanes_.push_back(lane);
  return absl::OkStatus();
}

absl::StatusOr<PieceSchedule> PieceSchedule::Make(const PrefillCall& call) {
  PieceSchedule schedule(call);
  absl::Status status;
  if (call.initial_state) {
    status.Update(schedule.Add(v1::TENSOR_ID_INITIAL_STATE, "initial_state", *call.initial_state, 3));
  }
  status.Update(schedule.Add(v1::TENSOR_ID_K, "k", call.k, 2));
  status.Update(schedule.Add(v1::TENSOR_ID_W, "w", call.w, 2));
  status.Update(schedule.Add(v1::TENSOR_ID_U, "u", call.u, 2));
  if (call.g) status.Update(schedule.Add(v1::TENSOR_ID_G, "g", *call.g, 1));
  if (call.auxiliary_state) {
    status.Update(schedule.Add(v1::TENSOR_ID_AUXILIARY, "auxiliary_state", *call.auxiliary_state, 1));
  }
  if (!status.ok()) return status;
  std::int64_t longest_row = 1;
  for (const Lane& lane : schedule.lanes_) {
    if (IsTokenLane(lane.tensor)) longest_row = std::max(longest_row, lane.row_bytes);
  }
  std::int64_t rows = std::max<std::int64_t>(1, kMaxPayloadBytes / longest_row);
  if (rows > kRowAlignment) rows -= rows % kRowAlignment;
  schedule.rows_per_group_ = rows;
  return schedule;
}

void PieceSchedule::NextGroup() {
  group_end_ += std::min(rows_per_group_, rows_ - group_end_);
  const bool last = group_end_ == rows_;
  for (; sequences_begun_ < sequences_; ++sequences_begun_) {
    // Ragged sequences begin where cu_seqlens says, dense ones at equal distances.
    const std::int64_t begin = call_->cu_seqlens.empty()
                                   ? rows_ / sequences_ * sequences_begun_
                                   : call_->cu_seqlens[static_cast<std::size_t>(sequences_begun_)];
    if (begin >= group_end_ && !last) break;
  }
  for (Lane& lane : lanes_) {
    std::int64_t rows = 0;  // auxiliary_state waits for the end
    if (IsTokenLane(lane.tensor)) rows = group_end_;
    if (lane.tensor == v1::TENSOR_ID_INITIAL_STATE) rows = sequences_begun_;
    const bool whole = last || (lane.row_bytes > 0 && rows > lane.size / lane.row_bytes);
    lane.target = whole ? lane.size : rows * lane.row_bytes;
  }
}

std::optional<Piece> PieceSchedule::Next() {
  while (true) {
    bool all_sent = true;
    for (Lane& lane : lanes_) {
      all_sent = all_sent && lane.sent == lane.size;
      if (lane.sent >= lane.target) continue;
      const Piece piece{lane.tensor, lane.sent, lane.data + lane.sent,
                        std::min(kMaxPayloadBytes, lane.target - lane.sent)};
      lane.sent += piece.size;
      return piece;
    }
    if (all_sent) return std::nullopt;
    NextGroup();
  }
}

}  // namespace gdpcache::client
