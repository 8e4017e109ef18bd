#ifndef GDPCACHE_SERVER_RPC_SERVICE_H_
#define GDPCACHE_SERVER_RPC_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "server/rpc/control_plane.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/memory/memory_plane.h"

namespace gdpcache::rpc {

namespace internal {

// Every method with gRPC's callback interface.
template <typename Base>
using WithServer =
    v1::StateCache::WithCallbackMethod_GetServerInfo<v1::StateCache::WithCallbackMethod_GetServerStats<Base>>;
template <typename Base>
using WithCaches = v1::StateCache::WithCallbackMethod_CreateCache<
    v1::StateCache::WithCallbackMethod_DeleteCache<v1::StateCache::WithCallbackMethod_ListCaches<Base>>>;
template <typename Base>
using WithSessions = v1::StateCache::WithCallbackMethod_OpenSession<
    v1::StateCache::WithCallbackMethod_KeepAlive<v1::StateCache::WithCallbackMethod_CloseSession<Base>>>;
template <typename Base>
using WithSlots = v1::StateCache::WithCallbackMethod_AcquireSlots<
    v1::StateCache::WithCallbackMethod_ReleaseSlots<v1::StateCache::WithCallbackMethod_ResetSlots<
        v1::StateCache::WithCallbackMethod_CopySlots<v1::StateCache::WithCallbackMethod_ListSlots<Base>>>>>;

template <typename Base>
using WithSharedMemory =
    v1::StateCache::WithCallbackMethod_RegisterSystemMemory<v1::StateCache::WithCallbackMethod_RegisterCudaMemory<
        v1::StateCache::WithCallbackMethod_RegisterCudaEvent<v1::StateCache::WithCallbackMethod_UnregisterMemory<
            v1::StateCache::WithCallbackMethod_ListSharedMemory<Base>>>>>;

// The streams come raw, see data_plane.h.
template <typename Base>
using WithTensors = v1::StateCache::WithCallbackMethod_Prefill<v1::StateCache::WithRawCallbackMethod_PrefillStream<
    v1::StateCache::WithRawCallbackMethod_ReadSlots<v1::StateCache::WithRawCallbackMethod_WriteSlots<Base>>>>;

template <typename Base>
using WithSnapshots = v1::StateCache::WithCallbackMethod_SaveSnapshots<v1::StateCache::WithCallbackMethod_LookupPrefix<
    v1::StateCache::WithCallbackMethod_RestoreSnapshots<v1::StateCache::WithCallbackMethod_PinSnapshots<
        v1::StateCache::WithCallbackMethod_UnpinSnapshots<v1::StateCache::WithCallbackMethod_DeleteSnapshots<
            v1::StateCache::WithCallbackMethod_ListSnapshots<v1::StateCache::WithCallbackMethod_QueryWriteStatus<
                v1::StateCache::WithRawCallbackMethod_WatchSnapshots<v1::StateCache::WithRawCallbackMethod_ReadSnapshot<
                    v1::StateCache::WithRawCallbackMethod_WriteSnapshot<Base>>>>>>>>>>>;

using ServiceBase = WithServer<
    WithCaches<WithSessions<WithSlots<WithSharedMemory<WithTensors<WithSnapshots<v1::StateCache::Service>>>>>>>;

}  // namespace internal

/// gdpcache.v1.StateCache: hands every call to the function that does it, and nothing else: its file, which contains
/// gRPC's handlers, is compiled without ThreadSanitizer (see CMakeLists.txt). Thread-safe.
class Service final : public internal::ServiceBase {
 public:
  /// `memory_plane` must outlive this.
  Service(const ControlPlane& control_plane, const DataPlane& data_plane, const MemoryPlane& memory_plane);
  ~Service() override;

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerStats(grpc::CallbackServerContext* context,
                                           const v1::GetServerStatsRequest* request,
                                           v1::GetServerStatsResponse* response) override;
  grpc::ServerUnaryReactor* CreateCache(grpc::CallbackServerContext* context, const v1::CreateCacheRequest* request,
                                        v1::CreateCacheResponse* response) override;
  grpc::ServerUnaryReactor* DeleteCache(grpc::CallbackServerContext* context, const v1::DeleteCacheRequest* request,
                                        v1::DeleteCacheResponse* response) override;
  grpc::ServerUnaryReactor* ListCaches(grpc::CallbackServerContext* context, const v1::ListCachesRequest* request,
                                       v1::ListCachesResponse* response) override;

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request,
                                        v1::OpenSessionResponse* response) override;
  grpc::ServerUnaryReactor* KeepAlive(grpc::CallbackServerContext* context, const v1::KeepAliveRequest* request,
                                      v1::KeepAliveResponse* response) override;
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context, const v1::CloseSessionRequest* request,
                                         v1::CloseSessionResponse* response) override;

  grpc::ServerUnaryReactor* AcquireSlots(grpc::CallbackServerContext* context, const v1::AcquireSlotsRequest* request,
                                         v1::AcquireSlotsResponse* response) override;
  grpc::ServerUnaryReactor* ReleaseSlots(grpc::CallbackServerContext* context, const v1::ReleaseSlotsRequest* request,
                                         v1::ReleaseSlotsResponse* response) override;
  grpc::ServerUnaryReactor* ResetSlots(grpc::CallbackServerContext* context, const v1::ResetSlotsRequest* request,
                                       v1::ResetSlotsResponse* response) override;
  grpc::ServerUnaryReactor* CopySlots(grpc::CallbackServerContext* context, const v1::CopySlotsRequest* request,
                                      v1::CopySlotsResponse* response) override;
  grpc::ServerUnaryReactor* ListSlots(grpc::CallbackServerContext* context, const v1::ListSlotsRequest* request,
                                      v1::ListSlotsResponse* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadSlots(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* WriteSlots(grpc::CallbackServerContext* context,
                                                        grpc::ByteBuffer* response) override;

  grpc::ServerUnaryReactor* RegisterSystemMemory(grpc::CallbackServerContext* context,
                                                 const v1::RegisterSystemMemoryRequest* request,
                                                 v1::RegisterSystemMemoryResponse* response) override;
  grpc::ServerUnaryReactor* RegisterCudaMemory(grpc::CallbackServerContext* context,
                                               const v1::RegisterCudaMemoryRequest* request,
                                               v1::RegisterCudaMemoryResponse* response) override;
  grpc::ServerUnaryReactor* RegisterCudaEvent(grpc::CallbackServerContext* context,
                                              const v1::RegisterCudaEventRequest* request,
                                              v1::RegisterCudaEventResponse* response) override;
  grpc::ServerUnaryReactor* UnregisterMemory(grpc::CallbackServerContext* context,
                                             const v1::UnregisterMemoryRequest* request,
                                             v1::UnregisterMemoryResponse* response) override;
  grpc::ServerUnaryReactor* ListSharedMemory(grpc::CallbackServerContext* context,
                                             const v1::ListSharedMemoryRequest* request,
                                             v1::ListSharedMemoryResponse* response) override;

  grpc::ServerUnaryReactor* Prefill(grpc::CallbackServerContext* context, const v1::PrefillRequest* request,
                                    v1::PrefillResponse* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PrefillStream(
      grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* SaveSnapshots(grpc::CallbackServerContext* context, const v1::SaveSnapshotsRequest* request,
                                          v1::SaveSnapshotsResponse* response) override;
  grpc::ServerUnaryReactor* LookupPrefix(grpc::CallbackServerContext* context, const v1::LookupPrefixRequest* request,
                                         v1::LookupPrefixResponse* response) override;
  grpc::ServerUnaryReactor* RestoreSnapshots(grpc::CallbackServerContext* context,
                                             const v1::RestoreSnapshotsRequest* request,
                                             v1::RestoreSnapshotsResponse* response) override;
  grpc::ServerUnaryReactor* PinSnapshots(grpc::CallbackServerContext* context, const v1::PinSnapshotsRequest* request,
                                         v1::PinSnapshotsResponse* response) override;
  grpc::ServerUnaryReactor* UnpinSnapshots(grpc::CallbackServerContext* context,
                                           const v1::UnpinSnapshotsRequest* request,
                                           v1::UnpinSnapshotsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteSnapshots(grpc::CallbackServerContext* context,
                                            const v1::DeleteSnapshotsRequest* request,
                                            v1::DeleteSnapshotsResponse* response) override;
  grpc::ServerUnaryReactor* ListSnapshots(grpc::CallbackServerContext* context, const v1::ListSnapshotsRequest* request,
                                          v1::ListSnapshotsResponse* response) override;
  grpc::ServerUnaryReactor* QueryWriteStatus(grpc::CallbackServerContext* context,
                                             const v1::QueryWriteStatusRequest* request,
                                             v1::QueryWriteStatusResponse* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchSnapshots(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadSnapshot(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* WriteSnapshot(grpc::CallbackServerContext* context,
                                                           grpc::ByteBuffer* response) override;

 private:
  const ControlPlane control_plane_;
  const DataPlane data_plane_;
  const MemoryPlane& memory_plane_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_SERVICE_H_
