#include <initializer_list>
#include <mutex>
#include <utility>
#include <vector>

#include "gdpcache/v1/session.pb.h"
#include "server/rpc/data/sending_stream.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/frame_codec.h"
#include "server/rpc/message_memory.h"
#include "server/rpc/prefill_codec.h"

namespace gdpcache::rpc {
namespace {

using Base = SendingStream<grpc::ServerWriteReactor<grpc::ByteBuffer>, engine::SlotReader>;

/// Sends the contents of slots.
class ReadSlotsReactor final : public Base {
 public:
  ReadSlotsReactor(const DataPlane& plane, grpc::CallbackServerContext& context) : Base(plane, "ReadSlots", context) {}

  /// Ends with Finish, maybe on another thread and before it returns.
  void Begin(const grpc::ByteBuffer& bytes) {
    v1::ReadSlotsRequest request;
    if (absl::Status status = ParseMessage(bytes, request); !status.ok()) return Fail(status);
    if (absl::Status status = Enter(request.session(), Trim(request)); !status.ok()) return Fail(status);
    auto call = plane_.engine.ReadSlots(
        caller_,
        {.slots = {request.slots().begin(), request.slots().end()},
         .layers = {request.layers().begin(), request.layers().end()}},
        [this](engine::SlotContents contents) { Describe(contents); }, *this,
        [this](const absl::Status& status) { Done(status); });
    if (!call.ok()) return Fail(call.status());
    if (absl::Status status = StartCall(*std::move(call)); !status.ok()) return Fail(status);
  }

 private:
  void Describe(const engine::SlotContents& contents) {
    const cache::Geometry& geometry = caller_.session->cache()->geometry();
    const std::vector<std::int64_t>& slots = contents.selection.slots;
    const std::vector<std::int64_t>& layers = contents.selection.layers;
    v1::ReadSlotsFrame first;
    v1::SlotContents& header = *first.mutable_contents();
    header.mutable_slots()->Add(slots.begin(), slots.end());
    header.mutable_layers()->Add(layers.begin(), layers.end());
    header.mutable_positions()->Add(contents.positions.begin(), contents.positions.end());
    const auto describe = [&](engine::ElementType dtype, std::initializer_list<std::int64_t> rest, v1::Tensor& tensor) {
      tensor.set_dtype(EncodeDataType(dtype));
      tensor.add_shape(static_cast<std::int64_t>(slots.size()));
      tensor.add_shape(static_cast<std::int64_t>(layers.size()));
      for (const std::int64_t dimension : rest) tensor.add_shape(dimension);
    };
    describe(engine::ElementTypeOf(geometry.state_dtype), {geometry.heads, geometry.key_dim, geometry.value_dim},
             *header.mutable_state());
    if (geometry.auxiliary_bytes > 0) {
      describe(engine::ElementType::kUint8, {geometry.auxiliary_bytes}, *header.mutable_auxiliary());
    }
    const std::lock_guard lock(mutex_);
    queue_.Push(first);
    WriteNextLocked();
  }

  void Done(const absl::Status& status) {
    if (!status.ok()) return Fail(status);
    const std::lock_guard lock(mutex_);
    CompleteLocked();
  }
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* HandleReadSlots(const DataPlane& plane,
                                                            grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request) {
  auto* const reactor = new ReadSlotsReactor(plane, *context);
  reactor->Begin(*request);
  return reactor;
}

}  // namespace gdpcache::rpc
