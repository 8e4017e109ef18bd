#ifndef GDPCACHE_SERVER_RPC_SERVICE_H_
#define GDPCACHE_SERVER_RPC_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "server/rpc/control_plane.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/memory/memory_plane.h"
#include "server/rpc/received.h"

namespace gdpcache::rpc {

namespace internal {

// The streams come raw, see data_plane.h.
template <typename Base>
using WithTensors = v1::StateCache::WithRawCallbackMethod_PrefillStream<
    v1::StateCache::WithRawCallbackMethod_ReadSlots<v1::StateCache::WithRawCallbackMethod_WriteSlots<Base>>>;
template <typename Base>
using WithSnapshots = v1::StateCache::WithRawCallbackMethod_WatchSnapshots<
    v1::StateCache::WithRawCallbackMethod_ReadSnapshot<v1::StateCache::WithRawCallbackMethod_WriteSnapshot<Base>>>;
using ServiceBase = WithTensors<WithSnapshots<v1::StateCache::Service>>;

}  // namespace internal

/// gdpcache.v1.StateCache: hands every call to the function that does it, and nothing else: its file, which contains
/// gRPC's handlers, is compiled without ThreadSanitizer (see CMakeLists.txt). Thread-safe.
///
/// The requests of the unary calls are Received.
class Service final : public internal::ServiceBase {
 public:
  /// `memory_plane` must outlive this.
  Service(const ControlPlane& control_plane, const DataPlane& data_plane, const MemoryPlane& memory_plane);
  ~Service() override;

  grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadSlots(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* WriteSlots(grpc::CallbackServerContext* context,
                                                        grpc::ByteBuffer* response) override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PrefillStream(
      grpc::CallbackServerContext* context) override;

  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchSnapshots(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadSnapshot(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* WriteSnapshot(grpc::CallbackServerContext* context,
                                                           grpc::ByteBuffer* response) override;

 private:
  /// What `handle` makes of the calls of a unary method. Those that let go of things are not `counted`: they are never
  /// refused.
  template <typename Plane, typename Request, typename Response>
  void Unary(const char* method,
             grpc::ServerUnaryReactor* (*handle)(const Plane&, grpc::CallbackServerContext*, const Request*, Response*),
             const Plane& plane, bool counted = true);

  const ControlPlane control_plane_;
  const DataPlane data_plane_;
  const MemoryPlane& memory_plane_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_SERVICE_H_
