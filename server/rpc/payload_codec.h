#ifndef GDPCACHE_SERVER_RPC_PAYLOAD_CODEC_H_
#define GDPCACHE_SERVER_RPC_PAYLOAD_CODEC_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

/// Messages with one bulk field of bytes, for the streams that carry a snapshot's file: on the wire what protobuf would
/// write, but the bytes are not copied on the way out and once on the way in.
namespace gdpcache::rpc {

/// `fields` with its field `payload_field`, which is not set in it, holding `ranges` one after the other. Large ranges
/// stay where they are; `owner` is let go when the transport needs them no more.
grpc::ByteBuffer EncodePayload(const google::protobuf::MessageLite& fields, int payload_field,
                               absl::Span<const kernels::ByteRange> ranges, const std::shared_ptr<const void>& owner);

/// What a frame { oneof { Header header = 1; bytes payload = 2; } } turned out to hold.
struct PayloadFrame {
  enum class Kind : std::uint8_t { kEmpty, kHeader, kPayload };
  Kind kind = Kind::kEmpty;
  std::int64_t position = 0;  // of the payload in the frame
  std::int64_t size = 0;
};

/// Reads a frame as protobuf would: unknown fields skipped, the last of several counts. A header is merged into
/// `header`. INVALID_ARGUMENT when the bytes are no such message, or too many objects (message_memory.h).
absl::StatusOr<PayloadFrame> ParsePayloadFrame(grpc::ByteBuffer& bytes, google::protobuf::Message& header);

/// Hands the payload of a kPayload frame over in pieces, until `take` returns an error.
absl::Status ReadPayload(grpc::ByteBuffer& bytes, const PayloadFrame& frame,
                         absl::FunctionRef<absl::Status(absl::Span<const std::byte>)> take);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_PAYLOAD_CODEC_H_
