#include "client/library/prefill_call.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/library/borrowed_memory.h"
#include "client/library/convert.h"
#include "client/library/frame_encoding.h"
#include "client/library/incoming_tensors.h"
#include "client/library/piece_schedule.h"
#include "client/library/prefill_layout.h"
#include "client/library/raw_call.h"
#include "client/library/result_memory.h"
#include "client/library/shared_places.h"
#include "client/library/snapshots.h"
#include "client/library/status_conversion.h"
#include "gdpcache/v1/prefill.pb.h"

namespace gdpcache::client {
namespace {

/// A unary message of all inputs and one of all results stay below this where the transport is chosen by size.
constexpr std::int64_t kMaxUnaryBytes = std::int64_t{1} << 20;

/// A unary message beyond protobuf's own limit cannot be decoded by any server.
constexpr std::int64_t kMaxMessageBytes = (std::int64_t{1} << 31) - (std::int64_t{1} << 20);

constexpr char kUnaryMethod[] = "/gdpcache.v1.StateCache/Prefill";
constexpr char kStreamMethod[] = "/gdpcache.v1.StateCache/PrefillStream";

/// Memory for a result that is not asked for is a mistake of the caller.
absl::Status CheckOutputsAreWanted(const PrefillCall& call) {
  const auto check = [](const char* output, bool given, bool wanted, const char* switch_name) {
    if (!given || wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("outputs.", output, " is given, but ", switch_name, " is not set"));
  };
  absl::Status status = check("h", call.outputs.h.has_value(), call.states != States::kNone, "states");
  status.Update(check("v_new", call.outputs.v_new.has_value(), call.save_new_value, "save_new_value"));
  status.Update(
      check("final_state", call.outputs.final_state.has_value(), call.output_final_state, "output_final_state"));
  return status;
}

absl::Status CheckHeaders(const v1::PrefillResponse& response, const IncomingTensors& incoming) {
  absl::Status status = incoming.CheckHeader(v1::TENSOR_ID_H, response.has_h(), response.h());
  status.Update(incoming.CheckHeader(v1::TENSOR_ID_V_NEW, response.has_v_new(), response.v_new()));
  status.Update(incoming.CheckHeader(v1::TENSOR_ID_FINAL_STATE, response.has_final_state(), response.final_state()));
  return status;
}

void TakeHeader(const v1::PrefillResponse& response, PrefillResult* result) {
  result->chunk_offsets.assign(response.chunk_offsets().begin(), response.chunk_offsets().end());
  result->positions.assign(response.positions().begin(), response.positions().end());
  for (const v1::SnapshotOutcome& outcome : response.snapshots()) result->snapshots.push_back(FromProto(outcome));
  result->timing = FromProto(response.timing());
}

/// Moves the tensors that travel out of the message, to be encoded from the caller's memory.
std::vector<InlineTensor> InlineTensors(const PrefillCall& call, v1::PrefillRequest* request) {
  std::vector<InlineTensor> tensors;
  const auto move_out = [&](int field, v1::Tensor* header, const ConstTensor& tensor) {
    if (header->has_shared_memory()) return;
    // PieceSchedule::Make has found that every tensor has a size.
    const std::int64_t size = ByteSize(tensor.dtype, tensor.shape).value_or(0);
    tensors.push_back({field, std::move(*header), static_cast<const std::byte*>(tensor.data), size});
    request->GetReflection()->ClearField(request, request->GetDescriptor()->FindFieldByNumber(field));
  };
  using Request = v1::PrefillRequest;
  move_out(Request::kKFieldNumber, request->mutable_k(), call.k);
  move_out(Request::kWFieldNumber, request->mutable_w(), call.w);
  move_out(Request::kUFieldNumber, request->mutable_u(), call.u);
  if (call.g) move_out(Request::kGFieldNumber, request->mutable_g(), *call.g);
  if (call.initial_state) {
    move_out(Request::kInitialStateFieldNumber, request->mutable_initial_state(), *call.initial_state);
  }
  if (call.auxiliary_state) {
    move_out(Request::kAuxiliaryStateFieldNumber, request->mutable_auxiliary_state(), *call.auxiliary_state);
  }
  return tensors;
}

absl::Status RunUnaryPrefill(const Connection& connection, const PrefillCall& call, const SharedPlaces& places,
                             absl::Time deadline, v1::PrefillRequest& request, IncomingTensors& incoming,
                             PrefillResult* result) {
  BorrowedMemory memory;
  const std::vector<InlineTensor> tensors = InlineTensors(call, &request);
  grpc::ByteBuffer answer;
  {
    const grpc::ByteBuffer message = EncodeWithTensors(request, tensors, memory);
    const absl::Status status = RunUnary(connection, kUnaryMethod, deadline, message, &answer);
    if (!status.ok()) return status;
  }
  v1::PrefillResponse response;
  absl::Status status = ParseMessage(answer, &response);
  status.Update(CheckHeaders(response, incoming));
  status.Update(CheckPlaces(places, response));
  const auto take = [&](v1::TensorId id, bool present, const v1::Tensor& tensor) {
    if (!status.ok() || !present) return;
    if (tensor.has_shared_memory()) return incoming.Complete(id);
    const absl::StatusOr<std::byte*> destination = incoming.Claim(id, 0, tensor.inline_().size());
    status.Update(destination.status());
    if (destination.ok()) tensor.inline_().copy(reinterpret_cast<char*>(*destination), tensor.inline_().size());
  };
  take(v1::TENSOR_ID_H, response.has_h(), response.h());
  take(v1::TENSOR_ID_V_NEW, response.has_v_new(), response.v_new());
  take(v1::TENSOR_ID_FINAL_STATE, response.has_final_state(), response.final_state());
  if (status.ok()) TakeHeader(response, result);
  return status;
}

absl::Status RunStreamPrefill(const Connection& connection, absl::Time deadline, const v1::PrefillRequest& request,
                              PieceSchedule& schedule, IncomingTensors& incoming, PrefillResult* result) {
  BorrowedMemory memory;
  bool request_sent = false;
  const auto next = [&](grpc::ByteBuffer* frame) {
    if (!request_sent) {
      v1::PrefillFrame first;
      *first.mutable_request() = request;
      *frame = EncodeMessage(first);
      request_sent = true;
      return true;
    }
    const std::optional<Piece> piece = schedule.Next();
    if (piece) *frame = EncodeDataFrame(*piece, memory);
    return piece.has_value();
  };
  bool committed = false;
  const auto receive = [&](grpc::ByteBuffer& buffer) -> absl::Status {
    if (committed) return ProtocolError("a frame after the response");
    const absl::StatusOr<bool> taken = TakeDataFrame(buffer, incoming);
    if (!taken.ok()) return taken.status();
    if (*taken) return absl::OkStatus();
    v1::PrefillFrame frame;
    absl::Status status = ParseMessage(buffer, &frame);
    if (!status.ok()) return status;
    if (frame.has_data()) return TakeData(frame.data(), incoming);
    if (!frame.has_response()) return ProtocolError("a frame with neither data nor response");
    status = CheckHeaders(frame.response(), incoming);
    if (status.ok()) TakeHeader(frame.response(), result);
    committed = true;
    return status;
  };
  const absl::Status status = RunStream(connection, kStreamMethod, deadline, next, receive);
  if (!status.ok()) return status;
  if (!committed) return ProtocolError("the stream ended without a response");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PrefillResult> RunPrefill(const Connection& connection, const std::string& session,
                                         const CacheGeometry& geometry, const SharedRegions& regions,
                                         const PrefillCall& call, absl::Time deadline) {
  absl::StatusOr<PieceSchedule> schedule = PieceSchedule::Make(call);
  if (!schedule.ok()) return schedule.status();
  const absl::StatusOr<PrefillLayout> layout = LayOutResults(call, geometry);
  if (!layout.ok()) return layout.status();

  PrefillResult result;
  IncomingTensors incoming;
  absl::Status status = CheckOutputsAreWanted(call);
  status.Update(PlaceResult(v1::TENSOR_ID_H, "h", layout->h, call.outputs.h, &result.h, &incoming));
  status.Update(PlaceResult(v1::TENSOR_ID_V_NEW, "v_new", layout->v_new, call.outputs.v_new, &result.v_new, &incoming));
  status.Update(PlaceResult(v1::TENSOR_ID_FINAL_STATE, "final_state", layout->final_state, call.outputs.final_state,
                            &result.final_state, &incoming));
  if (!status.ok()) return status;

  const bool look = call.transport == Transport::kAuto || call.transport == Transport::kSharedMemory;
  const SharedPlaces places = FindPlaces(call, *layout, regions, look);
  if (call.transport == Transport::kSharedMemory && !places.first_other.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(places.first_other, " does not lie, aligned, in memory that the session shares with the server"));
  }
  result.transport = call.transport;
  if (call.transport == Transport::kAuto) {
    const bool small = places.other_input_bytes <= kMaxUnaryBytes && places.other_result_bytes <= kMaxUnaryBytes;
    const Transport unary = places.any ? Transport::kSharedMemory : Transport::kUnary;
    result.transport = small ? unary : Transport::kStream;
  }
  v1::PrefillRequest request;
  ToProto(call, &request);
  request.set_session(session);
  if (result.transport == Transport::kStream) {
    status = RunStreamPrefill(connection, deadline, request, *schedule, incoming, &result);
  } else if (places.other_input_bytes > kMaxMessageBytes) {
    status = absl::InvalidArgumentError(absl::StrCat("the tensors have ", places.other_input_bytes,
                                                     " bytes; a unary call takes at most ", kMaxMessageBytes,
                                                     ", a stream any size"));
  } else {
    Describe(places, &request);
    status = RunUnaryPrefill(connection, call, places, deadline, request, incoming, &result);
  }
  if (status.ok()) status = incoming.CheckComplete();
  if (!status.ok()) return status;
  return result;
}

}  // namespace gdpcache::client
