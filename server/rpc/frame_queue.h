#ifndef GDPCACHE_SERVER_RPC_FRAME_QUEUE_H_
#define GDPCACHE_SERVER_RPC_FRAME_QUEUE_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "server/engine/streaming.h"
#include "server/rpc/frame_codec.h"

namespace gdpcache::rpc {

/// Frames on their way to a client, one in flight at a time. Not thread-safe.
class FrameQueue {
 public:
  /// A piece leaves as frames of at most this size: large ones cost the transport more, small ones the client.
  static constexpr std::int64_t kPayloadBytes = std::int64_t{1} << 20;

  void Push(engine::OutputPiece piece) { waiting_.push_back({std::move(piece), {}}); }
  void Push(const google::protobuf::MessageLite& message) { waiting_.push_back({{}, EncodeMessage(message)}); }

  bool InFlight() const { return in_flight_; }
  bool IsEmpty() const { return waiting_.empty() && !in_flight_; }

  /// The next frame, if none is in flight and there is one; it is in flight then and stays here until Sent.
  const grpc::ByteBuffer* Next() {
    if (in_flight_ || waiting_.empty()) return nullptr;
    in_flight_ = true;
    Waiting& first = waiting_.front();
    engine::OutputPiece& piece = first.piece;
    if (piece.size == 0) {
      frame_ = first.message;  // shares its slices
      frame_bytes_ = 0;
      waiting_.pop_front();
      return &frame_;
    }
    frame_bytes_ = std::min(piece.size, kPayloadBytes);
    frame_ = EncodeData(piece.tensor, piece.offset, piece.data, frame_bytes_, piece.owner);
    piece.offset += frame_bytes_;
    piece.data += frame_bytes_;
    piece.size -= frame_bytes_;
    if (piece.size == 0) waiting_.pop_front();
    return &frame_;
  }

  /// The frame in flight has left. Returns its tensor bytes.
  std::int64_t Sent() {
    in_flight_ = false;
    frame_.Clear();
    return std::exchange(frame_bytes_, 0);
  }

  /// Forgets what waits; not what is in flight.
  void Clear() { waiting_.clear(); }

 private:
  struct Waiting {
    engine::OutputPiece piece;  // or, when of size 0:
    grpc::ByteBuffer message;
  };

  std::deque<Waiting> waiting_;
  bool in_flight_ = false;
  grpc::ByteBuffer frame_;
  std::int64_t frame_bytes_ = 0;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_FRAME_QUEUE_H_
