#ifndef GDPCACHE_SERVER_RPC_FRAME_CODEC_H_
#define GDPCACHE_SERVER_RPC_FRAME_CODEC_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/streaming.h"

/// The frames of the streaming calls on the wire. PrefillFrame, ReadSlotsFrame and WriteSlotsFrame are alike: a oneof
/// of a header message in field 1 and TensorData in field 2. Tensor bytes are copied once on the way in, from the
/// transport's slices to where they belong, and not at all on the way out.
namespace gdpcache::rpc {

/// What a frame turned out to hold.
struct ParsedFrame {
  enum class Kind : std::uint8_t {
    kEmpty,   // nothing, or something that the receiver of this frame does not take
    kHeader,  // field 1, now in the message given
    kData,    // field 2: what follows
  };
  Kind kind = Kind::kEmpty;
  std::int32_t tensor = 0;  // a TensorId, maybe an unknown one
  std::uint64_t offset = 0;
  std::int64_t payload_position = 0;  // in the frame
  std::int64_t payload_size = 0;
};

/// Reads a frame as protobuf would: fields in any order, unknown ones skipped, the last of several counts. A header is
/// merged into `header`. INVALID_ARGUMENT when the bytes are no such message, or too many objects (message_memory.h).
absl::StatusOr<ParsedFrame> ParseFrame(grpc::ByteBuffer& bytes, google::protobuf::Message& header);

/// Reads a whole message. INVALID_ARGUMENT when the bytes are none, or too many objects (message_memory.h).
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

/// Copies the payload of a kData frame to where `input` wants it. An error of `input` has ended its call; one of the
/// frame itself (an unknown tensor) has not.
absl::Status DeliverPayload(grpc::ByteBuffer& bytes, const ParsedFrame& frame, engine::StreamedInput& input);

/// Delivers the payload of a frame behind the first, which must be kData; errors as ParseFrame's and DeliverPayload's.
/// `header` takes what a frame holds that is a header once more.
absl::Status DeliverFrame(grpc::ByteBuffer& bytes, google::protobuf::Message& header, engine::StreamedInput& input);

/// A frame of TensorData whose payload stays where it is; `owner` is let go when the transport needs it no more.
grpc::ByteBuffer EncodeData(engine::StreamTensor tensor, std::int64_t offset, const std::byte* data, std::int64_t size,
                            std::shared_ptr<const void> owner);

/// A whole message.
grpc::ByteBuffer EncodeMessage(const google::protobuf::MessageLite& message);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_FRAME_CODEC_H_
