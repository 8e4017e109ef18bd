#include "server/rpc/received.h"

#include "server/rpc/frame_codec.h"
#include "server/rpc/message_memory.h"
#include "server/rpc/unary_call.h"

namespace gdpcache::rpc {
namespace {

/// So few bytes on the wire take little, whatever they are.
constexpr std::size_t kTiny = 64;

std::int64_t InlineBytes(const v1::PrefillRequest& request) {
  std::int64_t bytes = 0;
  for (const v1::Tensor* const tensor :
       {&request.k(), &request.w(), &request.u(), &request.g(), &request.initial_state(), &request.auxiliary_state()}) {
    bytes += static_cast<std::int64_t>(tensor->inline_().size());
  }
  return bytes;
}

}  // namespace

absl::Status Receive(grpc::ByteBuffer& bytes, google::protobuf::Message& message, std::int64_t& kept) {
  const bool tiny = bytes.Length() <= kTiny;
  if (absl::Status status = ParseMessage(bytes, message); !status.ok()) return status;
  if (tiny) return absl::OkStatus();
  kept = Trim(message);
  // Tensors are counted by the call.
  if (const auto* const prefill = dynamic_cast<v1::PrefillRequest*>(&message)) kept -= InlineBytes(*prefill);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* Refuse(CallLog& log, absl::string_view method, grpc::CallbackServerContext& context,
                                 const absl::Status& status) {
  auto* const call = new UnaryCall(log, method, context);
  call->Answer(status);
  return call;
}

}  // namespace gdpcache::rpc
