#ifndef GDPCACHE_SERVER_ENGINE_SLOT_TRANSFER_H_
#define GDPCACHE_SERVER_ENGINE_SLOT_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/input_cursor.h"
#include "server/engine/ordered_call.h"
#include "server/engine/slot_operations.h"
#include "server/engine/streaming.h"
#include "server/engine/tensor_argument.h"

/// The contents of slots out of the server and into it, in pieces. session.proto documents both calls.
namespace gdpcache::engine {

/// Which states a call is about: the cross product, slots first.
struct SlotSelection {
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> layers = {};  // empty: all, ascending
};

/// What a reader tells before the bytes.
struct SlotContents {
  SlotSelection selection;              // layers spelled out
  std::vector<std::int64_t> positions;  // [slots, layers]
};

using ContentsReady = absl::AnyInvocable<void(SlotContents)>;

/// Reads slots. Holds them until the last byte has been copied out; at most a few pieces are in memory at a time.
class SlotReader final : public OrderedCall, public StreamedOutput {
 public:
  static absl::StatusOr<std::shared_ptr<SlotReader>> Create(const Environment& environment, CallContext context,
                                                            SlotSelection selection, ContentsReady contents,
                                                            StreamPeer& peer, Done done);

  void OutputSent(std::int64_t bytes) override;

 private:
  SlotReader(const Environment& environment, CallContext context, SlotSelection selection,
             std::shared_ptr<StagingAccount> staging, ContentsReady contents, StreamPeer& peer, Done done);

  absl::StatusOr<Places> Arrive() override;
  bool HasStep() const override;
  absl::StatusOr<bool> RunStep(kernels::Stream& stream) override;
  void LetGo() override;
  void Finish(absl::Status status) override { done_(std::move(status)); }

  absl::Status SendPiece(kernels::Stream& stream);

  const SlotSelection selection_;
  const std::int64_t count_;  // states
  std::shared_ptr<StagingAccount> staging_;
  ContentsReady contents_;
  StreamPeer& peer_;
  Done done_;

  bool told_ = false;  // by RunStep
  StreamTensor tensor_ = StreamTensor::kState;
  std::int64_t offset_ = 0;  // bytes of tensor_ that have been read

  std::int64_t unsent_ = 0;  // guarded by mutex()
};

struct WriteSlotsRequest {
  SlotSelection selection;
  std::vector<std::int64_t> positions;  // [slots, layers]; empty: all zero
  TensorArgument state;                 // its bytes follow as kState
  TensorArgument auxiliary;             // its bytes follow as kAuxiliary
};

/// Writes slots: in one step, when everything has arrived.
class SlotWriter final : public OrderedCall, public StreamedInput {
 public:
  static absl::StatusOr<std::shared_ptr<SlotWriter>> Create(const Environment& environment, CallContext context,
                                                            const WriteSlotsRequest& request, Done done);

  absl::StatusOr<absl::Span<std::byte>> Place(StreamTensor tensor, std::uint64_t offset, std::uint64_t size) override;
  void Placed(std::size_t size) override;
  void EndOfInput() override;
  bool WantsInput() override { return true; }

 private:
  struct Part {
    InputCursor cursor;
    std::shared_ptr<StagingBuffer> buffer;  // shared: Place's caller may still be writing when the call ends
  };

  SlotWriter(const Environment& environment, CallContext context, SlotSelection selection,
             std::vector<std::int64_t> positions, std::shared_ptr<StagingAccount> staging, Part state, Part auxiliary,
             Done done);

  absl::StatusOr<Places> Arrive() override;
  bool HasStep() const override { return ended_; }
  absl::StatusOr<bool> RunStep(kernels::Stream& stream) override;
  void LetGo() override;
  void Finish(absl::Status status) override { done_(std::move(status)); }

  const SlotSelection selection_;
  const std::vector<std::int64_t> positions_;
  std::shared_ptr<StagingAccount> staging_;
  Done done_;

  Part state_;  // guarded by mutex(), as are those below
  Part auxiliary_;
  bool ended_ = false;
  Part* placing_ = nullptr;
  std::shared_ptr<StagingBuffer> placing_in_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_SLOT_TRANSFER_H_
