#ifndef GDPCACHE_CLIENT_LIBRARY_FRAME_ENCODING_H_
#define GDPCACHE_CLIENT_LIBRARY_FRAME_ENCODING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/library/borrowed_memory.h"
#include "gdpcache/v1/tensor.pb.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

/// Messages whose bulk bytes are slices of the caller's memory: on the wire exactly what protobuf would have written.
namespace gdpcache::client {

/// The payload of a frame, at most. Streams of such frames are the fastest.
inline constexpr std::int64_t kMaxPayloadBytes = std::int64_t{1} << 20;

/// Bytes of a tensor on their way to the server.
struct Piece {
  v1::TensorId tensor = v1::TENSOR_ID_UNSPECIFIED;
  std::int64_t offset = 0;  // in bytes
  const std::byte* data = nullptr;
  std::int64_t size = 0;
};

/// A PrefillFrame or WriteSlotsFrame with `data`.
grpc::ByteBuffer EncodeDataFrame(const Piece& piece, BorrowedMemory& memory);

/// A tensor that goes into a field of a message.
struct InlineTensor {
  int field_number = 0;
  v1::Tensor header;  // without data
  const std::byte* data = nullptr;
  std::int64_t size = 0;
};

/// `message`, in which the fields named by `tensors` are not set, with those fields.
grpc::ByteBuffer EncodeWithTensors(const google::protobuf::MessageLite& message,
                                   const std::vector<InlineTensor>& tensors, BorrowedMemory& memory);

/// `message` as it is.
grpc::ByteBuffer EncodeMessage(const google::protobuf::MessageLite& message);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_FRAME_ENCODING_H_
