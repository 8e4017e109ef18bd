#include "server/rpc/service.h"

namespace gdpcache::rpc {

Service::Service(const ControlPlane& control_plane, const DataPlane& data_plane, const MemoryPlane& memory_plane)
    : control_plane_(control_plane), data_plane_(data_plane), memory_plane_(memory_plane) {}

Service::~Service() = default;

grpc::ServerUnaryReactor* Service::GetServerInfo(grpc::CallbackServerContext* context,
                                                 const v1::GetServerInfoRequest* request,
                                                 v1::GetServerInfoResponse* response) {
  return HandleGetServerInfo(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::GetServerStats(grpc::CallbackServerContext* context,
                                                  const v1::GetServerStatsRequest* request,
                                                  v1::GetServerStatsResponse* response) {
  return HandleGetServerStats(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::CreateCache(grpc::CallbackServerContext* context,
                                               const v1::CreateCacheRequest* request,
                                               v1::CreateCacheResponse* response) {
  return HandleCreateCache(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::DeleteCache(grpc::CallbackServerContext* context,
                                               const v1::DeleteCacheRequest* request,
                                               v1::DeleteCacheResponse* response) {
  return HandleDeleteCache(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::ListCaches(grpc::CallbackServerContext* context,
                                              const v1::ListCachesRequest* request, v1::ListCachesResponse* response) {
  return HandleListCaches(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::OpenSession(grpc::CallbackServerContext* context,
                                               const v1::OpenSessionRequest* request,
                                               v1::OpenSessionResponse* response) {
  return HandleOpenSession(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::KeepAlive(grpc::CallbackServerContext* context, const v1::KeepAliveRequest* request,
                                             v1::KeepAliveResponse* response) {
  return HandleKeepAlive(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::CloseSession(grpc::CallbackServerContext* context,
                                                const v1::CloseSessionRequest* request,
                                                v1::CloseSessionResponse* response) {
  return HandleCloseSession(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::AcquireSlots(grpc::CallbackServerContext* context,
                                                const v1::AcquireSlotsRequest* request,
                                                v1::AcquireSlotsResponse* response) {
  return HandleAcquireSlots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::ReleaseSlots(grpc::CallbackServerContext* context,
                                                const v1::ReleaseSlotsRequest* request,
                                                v1::ReleaseSlotsResponse* response) {
  return HandleReleaseSlots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::ResetSlots(grpc::CallbackServerContext* context,
                                              const v1::ResetSlotsRequest* request, v1::ResetSlotsResponse* response) {
  return HandleResetSlots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::CopySlots(grpc::CallbackServerContext* context, const v1::CopySlotsRequest* request,
                                             v1::CopySlotsResponse* response) {
  return HandleCopySlots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::ListSlots(grpc::CallbackServerContext* context, const v1::ListSlotsRequest* request,
                                             v1::ListSlotsResponse* response) {
  return HandleListSlots(control_plane_, context, request, response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* Service::ReadSlots(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request) {
  return HandleReadSlots(data_plane_, context, request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* Service::WriteSlots(grpc::CallbackServerContext* context,
                                                               grpc::ByteBuffer* response) {
  return HandleWriteSlots(data_plane_, context, response);
}

grpc::ServerUnaryReactor* Service::RegisterSystemMemory(grpc::CallbackServerContext* context,
                                                        const v1::RegisterSystemMemoryRequest* request,
                                                        v1::RegisterSystemMemoryResponse* response) {
  return HandleRegisterSystemMemory(memory_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::RegisterCudaMemory(grpc::CallbackServerContext* context,
                                                      const v1::RegisterCudaMemoryRequest* request,
                                                      v1::RegisterCudaMemoryResponse* response) {
  return HandleRegisterCudaMemory(memory_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::RegisterCudaEvent(grpc::CallbackServerContext* context,
                                                     const v1::RegisterCudaEventRequest* request,
                                                     v1::RegisterCudaEventResponse* response) {
  return HandleRegisterCudaEvent(memory_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::UnregisterMemory(grpc::CallbackServerContext* context,
                                                    const v1::UnregisterMemoryRequest* request,
                                                    v1::UnregisterMemoryResponse* response) {
  return HandleUnregisterMemory(memory_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::ListSharedMemory(grpc::CallbackServerContext* context,
                                                    const v1::ListSharedMemoryRequest* request,
                                                    v1::ListSharedMemoryResponse* response) {
  return HandleListSharedMemory(memory_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::Prefill(grpc::CallbackServerContext* context, const v1::PrefillRequest* request,
                                           v1::PrefillResponse* response) {
  return HandlePrefill(data_plane_, context, request, response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Service::PrefillStream(
    grpc::CallbackServerContext* context) {
  return HandlePrefillStream(data_plane_, context);
}

grpc::ServerUnaryReactor* Service::SaveSnapshots(grpc::CallbackServerContext* context,
                                                 const v1::SaveSnapshotsRequest* request,
                                                 v1::SaveSnapshotsResponse* response) {
  return HandleSaveSnapshots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::LookupPrefix(grpc::CallbackServerContext* context,
                                                const v1::LookupPrefixRequest* request,
                                                v1::LookupPrefixResponse* response) {
  return HandleLookupPrefix(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::RestoreSnapshots(grpc::CallbackServerContext* context,
                                                    const v1::RestoreSnapshotsRequest* request,
                                                    v1::RestoreSnapshotsResponse* response) {
  return HandleRestoreSnapshots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::PinSnapshots(grpc::CallbackServerContext* context,
                                                const v1::PinSnapshotsRequest* request,
                                                v1::PinSnapshotsResponse* response) {
  return HandlePinSnapshots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::UnpinSnapshots(grpc::CallbackServerContext* context,
                                                  const v1::UnpinSnapshotsRequest* request,
                                                  v1::UnpinSnapshotsResponse* response) {
  return HandleUnpinSnapshots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::DeleteSnapshots(grpc::CallbackServerContext* context,
                                                   const v1::DeleteSnapshotsRequest* request,
                                                   v1::DeleteSnapshotsResponse* response) {
  return HandleDeleteSnapshots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::ListSnapshots(grpc::CallbackServerContext* context,
                                                 const v1::ListSnapshotsRequest* request,
                                                 v1::ListSnapshotsResponse* response) {
  return HandleListSnapshots(control_plane_, context, request, response);
}

grpc::ServerUnaryReactor* Service::QueryWriteStatus(grpc::CallbackServerContext* context,
                                                    const v1::QueryWriteStatusRequest* request,
                                                    v1::QueryWriteStatusResponse* response) {
  return HandleQueryWriteStatus(control_plane_, context, request, response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* Service::WatchSnapshots(grpc::CallbackServerContext* context,
                                                                    const grpc::ByteBuffer* request) {
  return HandleWatchSnapshots(data_plane_, context, request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* Service::ReadSnapshot(grpc::CallbackServerContext* context,
                                                                  const grpc::ByteBuffer* request) {
  return HandleReadSnapshot(data_plane_, context, request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* Service::WriteSnapshot(grpc::CallbackServerContext* context,
                                                                  grpc::ByteBuffer* response) {
  return HandleWriteSnapshot(data_plane_, context, response);
}

}  // namespace gdpcache::rpc
