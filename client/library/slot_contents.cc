#include "client/library/slot_contents.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/library/borrowed_memory.h"
#include "client/library/convert.h"
#include "client/library/frame_encoding.h"
#include "client/library/incoming_tensors.h"
#include "client/library/raw_call.h"
#include "client/library/result_memory.h"
#include "client/library/status_conversion.h"
#include "gdpcache/v1/session.pb.h"

namespace gdpcache::client {
namespace {

constexpr char kReadMethod[] = "/gdpcache.v1.StateCache/ReadSlots";
constexpr char kWriteMethod[] = "/gdpcache.v1.StateCache/WriteSlots";

absl::StatusOr<std::optional<ResultLayout>> Layout(DataType dtype, std::vector<std::int64_t> shape) {
  const absl::StatusOr<std::int64_t> size = ByteSize(dtype, shape);
  if (!size.ok()) return size.status();
  return ResultLayout{dtype, std::move(shape), *size};
}

/// The header of an answer tells of the slots and layers that were asked for, and of the tensors expected.
absl::Status CheckContents(const v1::SlotContents& contents, absl::Span<const std::int64_t> slots,
                           absl::Span<const std::int64_t> layers, std::int64_t layer_count,
                           const IncomingTensors& incoming) {
  if (!std::equal(contents.slots().begin(), contents.slots().end(), slots.begin(), slots.end())) {
    return ProtocolError("it answered with other slots than asked for");
  }
  // Where all layers were asked for, the answer may leave the list out or spell it out.
  const bool all = layers.empty() && contents.layers().empty();
  if (!all && contents.layers_size() != layer_count) return ProtocolError("it answered with another number of layers");
  if (!layers.empty() && !std::equal(contents.layers().begin(), contents.layers().end(), layers.begin())) {
    return ProtocolError("it answered with other layers than asked for");
  }
  if (contents.positions_size() != static_cast<std::int64_t>(slots.size()) * layer_count) {
    return ProtocolError(absl::StrCat("it answered with ", contents.positions_size(), " positions for ", slots.size(),
                                      " slots of ", layer_count, " layers"));
  }
  absl::Status status = incoming.CheckHeader(v1::TENSOR_ID_STATE, contents.has_state(), contents.state());
  status.Update(incoming.CheckHeader(v1::TENSOR_ID_AUXILIARY, contents.has_auxiliary(), contents.auxiliary()));
  return status;
}

/// The tensor's bytes in pieces, one tensor after the other.
class Pieces {
 public:
  absl::Status Add(v1::TensorId id, const char* name, const ConstTensor& tensor) {
    const absl::StatusOr<std::int64_t> size = ByteSize(tensor.dtype, tensor.shape);
    if (!size.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", size.status().message()));
    if (*size > 0 && tensor.data == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has ", *size, " bytes and its data is a null pointer"));
    }
    tensors_.push_back({id, 0, static_cast<const std::byte*>(tensor.data), *size});
    return absl::OkStatus();
  }

  std::optional<Piece> Next() {
    for (Piece& rest : tensors_) {
      if (rest.size == 0) continue;
      Piece piece = rest;
      piece.size = std::min(rest.size, kMaxPayloadBytes);
      rest.offset += piece.size;
      rest.data += piece.size;
      rest.size -= piece.size;
      return piece;
    }
    return std::nullopt;
  }

 private:
  std::vector<Piece> tensors_;  // what is left of each
};

}  // namespace

absl::StatusOr<SlotContents> ReadSlotContents(const Connection& connection, const std::string& session,
                                              const CacheGeometry& geometry, absl::Span<const std::int64_t> slots,
                                              absl::Span<const std::int64_t> layers, const SlotOutputs& outputs,
                                              absl::Time deadline) {
  const auto slot_count = static_cast<std::int64_t>(slots.size());
  const std::int64_t layer_count = layers.empty() ? geometry.layers : static_cast<std::int64_t>(layers.size());
  const absl::StatusOr<std::optional<ResultLayout>> state_layout =
      Layout(geometry.state_dtype, {slot_count, layer_count, geometry.heads, geometry.key_dim, geometry.value_dim});
  if (!state_layout.ok()) return state_layout.status();
  absl::StatusOr<std::optional<ResultLayout>> auxiliary_layout = std::nullopt;
  if (geometry.auxiliary_bytes > 0) {
    auxiliary_layout = Layout(DataType::kUInt8, {slot_count, layer_count, geometry.auxiliary_bytes});
  }
  if (!auxiliary_layout.ok()) return auxiliary_layout.status();

  SlotContents result;
  IncomingTensors incoming;
  absl::Status status =
      PlaceResult(v1::TENSOR_ID_STATE, "state", *state_layout, outputs.state, &result.state, &incoming);
  status.Update(PlaceResult(v1::TENSOR_ID_AUXILIARY, "auxiliary", *auxiliary_layout, outputs.auxiliary,
                            &result.auxiliary, &incoming));
  if (!status.ok()) return status;

  v1::ReadSlotsRequest request;
  request.set_session(session);
  request.mutable_slots()->Assign(slots.begin(), slots.end());
  request.mutable_layers()->Assign(layers.begin(), layers.end());
  bool request_sent = false;
  const auto next = [&](grpc::ByteBuffer* message) {
    if (request_sent) return false;
    *message = EncodeMessage(request);
    request_sent = true;
    return true;
  };
  bool header_seen = false;
  const auto receive = [&](grpc::ByteBuffer& buffer) -> absl::Status {
    const absl::StatusOr<bool> taken = TakeDataFrame(buffer, incoming);
    if (!taken.ok()) return taken.status();
    if (*taken) return absl::OkStatus();
    v1::ReadSlotsFrame frame;
    const absl::Status parsed = ParseMessage(buffer, &frame);
    if (!parsed.ok()) return parsed;
    if (frame.has_data()) return TakeData(frame.data(), incoming);
    if (!frame.has_contents() || header_seen) return ProtocolError("a frame with neither data nor the first contents");
    header_seen = true;
    const v1::SlotContents& contents = frame.contents();
    result.slots.assign(contents.slots().begin(), contents.slots().end());
    result.layers.assign(contents.layers().begin(), contents.layers().end());
    result.positions.assign(contents.positions().begin(), contents.positions().end());
    return CheckContents(contents, slots, layers, layer_count, incoming);
  };
  status = RunStream(connection, kReadMethod, deadline, next, receive);
  if (status.ok() && !header_seen) status = ProtocolError("the stream ended without contents");
  if (status.ok()) status = incoming.CheckComplete();
  if (!status.ok()) return status;
  if (result.layers.empty()) {
    for (std::int64_t layer = 0; layer < layer_count; ++layer) result.layers.push_back(layer);
  }
  return result;
}

absl::Status WriteSlotContents(const Connection& connection, const std::string& session, const SlotUpdate& update,
                               absl::Time deadline) {
  Pieces pieces;
  absl::Status status = pieces.Add(v1::TENSOR_ID_STATE, "state", update.state);
  if (update.auxiliary) status.Update(pieces.Add(v1::TENSOR_ID_AUXILIARY, "auxiliary", *update.auxiliary));
  if (!status.ok()) return status;

  v1::WriteSlotsFrame header;
  header.mutable_header()->set_session(session);
  v1::SlotContents* contents = header.mutable_header()->mutable_contents();
  contents->mutable_slots()->Assign(update.slots.begin(), update.slots.end());
  contents->mutable_layers()->Assign(update.layers.begin(), update.layers.end());
  contents->mutable_positions()->Assign(update.positions.begin(), update.positions.end());
  ToProto(update.state.dtype, update.state.shape, contents->mutable_state());
  if (update.auxiliary) ToProto(update.auxiliary->dtype, update.auxiliary->shape, contents->mutable_auxiliary());

  BorrowedMemory memory;
  bool header_sent = false;
  const auto next = [&](grpc::ByteBuffer* frame) {
    if (!header_sent) {
      *frame = EncodeMessage(header);
      header_sent = true;
      return true;
    }
    const std::optional<Piece> piece = pieces.Next();
    if (piece) *frame = EncodeDataFrame(*piece, memory);
    return piece.has_value();
  };
  bool answered = false;
  const auto receive = [&](grpc::ByteBuffer& buffer) {
    v1::WriteSlotsResponse response;
    if (answered) return ProtocolError("a second response");
    answered = true;
    return ParseMessage(buffer, &response);
  };
  status = RunStream(connection, kWriteMethod, deadline, next, receive);
  if (status.ok() && !answered) status = ProtocolError("the call ended without a response");
  return status;
}

}  // namespace gdpcache::client
