#include "client/library/piece_schedule.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdpcache::client {
namespace {

using ::testing::HasSubstr;

/// Tensors of one shape each, over memory that holds enough bytes for any of them.
class PieceScheduleTest : public ::testing::Test {
 protected:
  ConstTensor View(DataType dtype, std::vector<std::int64_t> shape) {
    const std::int64_t size = ByteSize(dtype, shape).value();
    if (static_cast<std::int64_t>(memory_.size()) < size) memory_.resize(static_cast<std::size_t>(size));
    return {dtype, std::move(shape), memory_.data()};
  }

  /// The memory may have moved while views were made.
  void SetViews(PrefillCall* call) {
    call->k.data = call->w.data = call->u.data = memory_.data();
    if (call->g) call->g->data = memory_.data();
    if (call->initial_state) call->initial_state->data = memory_.data();
    if (call->auxiliary_state) call->auxiliary_state->data = memory_.data();
  }

  PrefillCall Call(std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
    PrefillCall call;
    call.k = View(DataType::kFloat32, {tokens, heads, dim});
    call.w = call.k;
    call.u = call.k;
    call.g = View(DataType::kFloat32, {tokens, heads});
    SetViews(&call);
    return call;
  }

  static std::vector<Piece> All(const PrefillCall& call) {
    absl::StatusOr<PieceSchedule> schedule = PieceSchedule::Make(call);
    EXPECT_TRUE(schedule.ok()) << schedule.status();
    std::vector<Piece> pieces;
    while (const std::optional<Piece> piece = schedule->Next()) pieces.push_back(*piece);
    return pieces;
  }

  /// Bytes sent of each tensor; pieces must be in order, without gaps and not too large.
  std::map<v1::TensorId, std::int64_t> Sent(const std::vector<Piece>& pieces) {
    std::map<v1::TensorId, std::int64_t> sent;
    for (const Piece& piece : pieces) {
      EXPECT_EQ(piece.offset, sent[piece.tensor]);
      EXPECT_EQ(piece.data, memory_.data() + piece.offset);
      EXPECT_GT(piece.size, 0);
      EXPECT_LE(piece.size, kMaxPayloadBytes);
      sent[piece.tensor] += piece.size;
    }
    return sent;
  }

  std::vector<std::byte> memory_;
};

TEST_F(PieceScheduleTest, SendsEveryByteOnceInOrder) {
  for (const std::int64_t tokens : {0, 1, 127, 128, 129, 1000}) {
    const PrefillCall call = Call(tokens, 4, 200);
    std::map<v1::TensorId, std::int64_t> sent = Sent(All(call));
    EXPECT_EQ(sent[v1::TENSOR_ID_K], tokens * 4 * 200 * 4);
    EXPECT_EQ(sent[v1::TENSOR_ID_W], tokens * 4 * 200 * 4);
    EXPECT_EQ(sent[v1::TENSOR_ID_U], tokens * 4 * 200 * 4);
    EXPECT_EQ(sent[v1::TENSOR_ID_G], tokens * 4 * 4);
  }
}

TEST_F(PieceScheduleTest, InterleavesByToken) {
  const std::int64_t row = std::int64_t{8} * 256 * 4;  // 8 KiB: 128 rows to a megabyte
  const PrefillCall call = Call(1000, 8, 256);
  std::map<v1::TensorId, std::int64_t> sent;
  for (const Piece& piece : All(call)) {
    sent[piece.tensor] += piece.size;
    // No tensor is ahead of another by more than a group.
    EXPECT_LE(sent[v1::TENSOR_ID_K] - sent[v1::TENSOR_ID_U], 128 * row);
    EXPECT_LE(sent[v1::TENSOR_ID_U], sent[v1::TENSOR_ID_K]);
    EXPECT_LE(sent[v1::TENSOR_ID_G] * 256, sent[v1::TENSOR_ID_U]);
  }
}

TEST_F(PieceScheduleTest, SplitsRowsLongerThanAFrame) {
  PrefillCall call = Call(3, 300, 1024);  // 1.2 MB a row
  const std::vector<Piece> pieces = All(call);
  std::map<v1::TensorId, std::int64_t> sent = Sent(pieces);
  EXPECT_EQ(sent[v1::TENSOR_ID_K], 3 * 300 * 1024 * 4);
  EXPECT_EQ(pieces[0].size, kMaxPayloadBytes);
  EXPECT_EQ(pieces[1].tensor, v1::TENSOR_ID_K);
  EXPECT_EQ(pieces[1].size, std::int64_t{300} * 1024 * 4 - kMaxPayloadBytes);
  EXPECT_EQ(pieces[2].tensor, v1::TENSOR_ID_W);
}

TEST_F(PieceScheduleTest, SendsAnInitialStateBeforeItsSequencesTokensAndAuxiliaryBytesLast) {
  PrefillCall call = Call(1000, 8, 256);
  const std::vector<std::int32_t> cu_seqlens = {0, 0, 100, 128, 900, 1000, 1000};
  call.cu_seqlens = cu_seqlens;
  call.initial_state = View(DataType::kFloat32, {6, 8, 256, 2});
  call.auxiliary_state = View(DataType::kUInt8, {6, 10});
  SetViews(&call);
  const std::vector<Piece> pieces = All(call);
  std::map<v1::TensorId, std::int64_t> sent;
  const std::int64_t state_row = std::int64_t{8} * 256 * 2 * 4;
  for (const Piece& piece : pieces) {
    sent[piece.tensor] += piece.size;
    const std::int64_t tokens = sent[v1::TENSOR_ID_K] / (std::int64_t{8} * 256 * 4);
    for (std::int64_t n = 0; n < 6; ++n) {
      if (cu_seqlens[static_cast<std::size_t>(n)] < tokens) {
        EXPECT_GE(sent[v1::TENSOR_ID_INITIAL_STATE], (n + 1) * state_row);
      }
    }
    EXPECT_TRUE(piece.tensor == v1::TENSOR_ID_AUXILIARY || sent[v1::TENSOR_ID_AUXILIARY] == 0);
  }
  // Not all at the start: the fourth sequence begins at 128, in the second group.
  EXPECT_EQ(pieces.front().tensor, v1::TENSOR_ID_INITIAL_STATE);
  EXPECT_EQ(pieces.front().size, 3 * state_row);
  EXPECT_EQ(Sent(pieces)[v1::TENSOR_ID_INITIAL_STATE], 6 * state_row);
  EXPECT_EQ(sent[v1::TENSOR_ID_AUXILIARY], 60);
}

TEST_F(PieceScheduleTest, SendsInitialStatesOfDenseBatches) {
  PrefillCall call;
  call.k = View(DataType::kFloat32, {4, 128, 8, 256});
  call.w = call.k;
  call.u = call.k;
  call.batch = 4;
  call.initial_state = View(DataType::kFloat32, {4, 8, 256, 2});
  SetViews(&call);
  const std::vector<Piece> pieces = All(call);
  EXPECT_EQ(pieces.front().tensor, v1::TENSOR_ID_INITIAL_STATE);
  EXPECT_EQ(pieces.front().size, 8 * 256 * 2 * 4);
  EXPECT_EQ(Sent(pieces)[v1::TENSOR_ID_INITIAL_STATE], 4 * 8 * 256 * 2 * 4);
}

TEST_F(PieceScheduleTest, SendsMalformedCallsWholeForTheServerToJudge) {
  PrefillCall call = Call(10, 2, 16);
  call.w = View(DataType::kFloat32, {7, 2, 16});
  call.u = View(DataType::kFloat32, {16});
  call.initial_state = View(DataType::kFloat32, {3});
  SetViews(&call);
  const std::vector<std::int64_t> cu_seqlens = {5, -7, INT64_MAX};
  call.cu_seqlens = cu_seqlens;
  call.batch = INT64_MAX;
  std::map<v1::TensorId, std::int64_t> sent = Sent(All(call));
  EXPECT_EQ(sent[v1::TENSOR_ID_K], 10 * 2 * 16 * 4);
  EXPECT_EQ(sent[v1::TENSOR_ID_W], 7 * 2 * 16 * 4);
  EXPECT_EQ(sent[v1::TENSOR_ID_U], 64);
  EXPECT_EQ(sent[v1::TENSOR_ID_INITIAL_STATE], 12);
}

TEST_F(PieceScheduleTest, RefusesTensorsWithoutSizeOrData) {
  PrefillCall call = Call(10, 2, 16);
  call.w.shape[0] = INT64_MAX;
  EXPECT_THAT(std::string(PieceSchedule::Make(call).status().message()), HasSubstr("w: "));
  call.w.shape[0] = -1;
  EXPECT_FALSE(PieceSchedule::Make(call).ok());
  call.w = call.k;
  call.w.data = nullptr;
  EXPECT_THAT(std::string(PieceSchedule::Make(call).status().message()),
              HasSubstr("w has 1280 bytes and its data is a null pointer"));
}

}  // namespace
}  // namespace gdpcache::client
