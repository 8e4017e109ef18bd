#ifndef GDPCACHE_SERVER_ENGINE_STREAMING_H_
#define GDPCACHE_SERVER_ENGINE_STREAMING_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gdpcache::engine {

/// The tensors whose bytes travel in frames.
enum class StreamTensor : std::uint8_t { kK, kW, kU, kG, kInitialState, kAuxiliary, kState, kH, kVNew, kFinalState };

/// A run of one result's bytes, in memory that `owner` keeps.
struct OutputPiece {
  StreamTensor tensor = StreamTensor::kH;
  std::int64_t offset = 0;  // bytes of the tensor before it
  const std::byte* data = nullptr;
  std::int64_t size = 0;
  std::shared_ptr<const void> owner;
};

/// What a streaming call talks to. Called from any thread, never under a lock of the engine and not after the call's
/// done callback.
class StreamPeer {
 public:
  StreamPeer() = default;
  StreamPeer(const StreamPeer&) = delete;
  StreamPeer& operator=(const StreamPeer&) = delete;
  virtual ~StreamPeer() = default;

  /// One call at a time; the pieces of a tensor come in ascending order and without gaps. A call produces no more while
  /// much of it is unsent, see StreamedOutput.
  virtual void Output(OutputPiece piece) = 0;

  /// The call takes input again after StreamedInput::WantsInput said no.
  virtual void InputWanted() = 0;
};

/// The side of a streaming call that produces.
class StreamedOutput {
 public:
  virtual ~StreamedOutput() = default;

  /// `bytes` more of the output have left.
  virtual void OutputSent(std::int64_t bytes) = 0;
};

/// The side of a streaming call that consumes. Used by one thread at a time. An error it returns has ended the call.
class StreamedInput {
 public:
  virtual ~StreamedInput() = default;

  /// Where the next bytes of `tensor` go: at least one, at most `size`; `offset` is that of the first. Valid until the
  /// next use of this interface. INVALID_ARGUMENT for a tensor that the call does not take, an offset other than the
  /// number of bytes placed before, or more bytes than the tensor has; RESOURCE_EXHAUSTED when it runs too far ahead of
  /// the others.
  virtual absl::StatusOr<absl::Span<std::byte>> Place(StreamTensor tensor, std::uint64_t offset,
                                                      std::uint64_t size) = 0;

  /// The first `size` bytes of what Place returned last have been written.
  virtual void Placed(std::size_t size) = 0;

  /// The caller has sent everything. A tensor that is not whole ends the call with INVALID_ARGUMENT.
  virtual void EndOfInput() = 0;

  /// False when enough input waits to be worked on; then StreamPeer::InputWanted tells when to go on.
  virtual bool WantsInput() = 0;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_STREAMING_H_
