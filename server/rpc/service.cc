#include "server/rpc/service.h"

#include <google/protobuf/descriptor.h>

#include <utility>

#include "server/rpc/call_context.h"

namespace gdpcache::rpc {

Service::Service(const ControlPlane& control_plane, const DataPlane& data_plane, const MemoryPlane& memory_plane)
    : control_plane_(control_plane), data_plane_(data_plane), memory_plane_(memory_plane) {
  Unary("GetServerInfo", &HandleGetServerInfo, control_plane_);
  Unary("GetServerStats", &HandleGetServerStats, control_plane_);
  Unary("CreateCache", &HandleCreateCache, control_plane_);
  Unary("DeleteCache", &HandleDeleteCache, control_plane_);
  Unary("ListCaches", &HandleListCaches, control_plane_);
  Unary("OpenSession", &HandleOpenSession, control_plane_);
  Unary("KeepAlive", &HandleKeepAlive, control_plane_, /*counted=*/false);
  Unary("CloseSession", &HandleCloseSession, control_plane_, /*counted=*/false);
  Unary("AcquireSlots", &HandleAcquireSlots, control_plane_);
  Unary("ReleaseSlots", &HandleReleaseSlots, control_plane_, /*counted=*/false);
  Unary("ResetSlots", &HandleResetSlots, control_plane_);
  Unary("CopySlots", &HandleCopySlots, control_plane_);
  Unary("ListSlots", &HandleListSlots, control_plane_);
  Unary("RegisterSystemMemory", &HandleRegisterSystemMemory, memory_plane_);
  Unary("RegisterCudaMemory", &HandleRegisterCudaMemory, memory_plane_);
  Unary("RegisterCudaEvent", &HandleRegisterCudaEvent, memory_plane_);
  Unary("UnregisterMemory", &HandleUnregisterMemory, memory_plane_);
  Unary("ListSharedMemory", &HandleListSharedMemory, memory_plane_);
  Unary("Prefill", &HandlePrefill, data_plane_);
  Unary("SaveSnapshots", &HandleSaveSnapshots, control_plane_);
  Unary("LookupPrefix", &HandleLookupPrefix, control_plane_);
  Unary("RestoreSnapshots", &HandleRestoreSnapshots, control_plane_);
  Unary("PinSnapshots", &HandlePinSnapshots, control_plane_);
  Unary("UnpinSnapshots", &HandleUnpinSnapshots, control_plane_);
  Unary("DeleteSnapshots", &HandleDeleteSnapshots, control_plane_);
  Unary("ListSnapshots", &HandleListSnapshots, control_plane_);
  Unary("QueryWriteStatus", &HandleQueryWriteStatus, control_plane_);
}

Service::~Service() = default;

template <typename Plane, typename Request, typename Response>
void Service::Unary(const char* method,
                    grpc::ServerUnaryReactor* (*handle)(const Plane&, grpc::CallbackServerContext*, const Request*,
                                                        Response*),
                    const Plane& plane, bool counted) {
  auto* const handler = new grpc::internal::CallbackUnaryHandler<Received<Request>, Response>(
      [this, method, handle, &plane, counted](grpc::CallbackServerContext* context, const Received<Request>* request,
                                              Response* response) {
        absl::Status status = request->status;
        if (status.ok() && counted) {
          auto account = ChargeCaller(data_plane_, *context, request->kept);
          status = account.status();
          if (account.ok()) request->account = *std::move(account);
        }
        if (!status.ok()) return Refuse(data_plane_.log, method, *context, status);
        return handle(plane, context, &request->message, response);
      });
  const google::protobuf::ServiceDescriptor& service =
      *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(v1::StateCache::service_full_name());
  MarkMethodCallback(service.FindMethodByName(method)->index(), handler);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* Service::ReadSlots(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request) {
  return HandleReadSlots(data_plane_, context, request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* Service::WriteSlots(grpc::CallbackServerContext* context,
                                                               grpc::ByteBuffer* response) {
  return HandleWriteSlots(data_plane_, context, response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Service::PrefillStream(
    grpc::CallbackServerContext* context) {
  return HandlePrefillStream(data_plane_, context);
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
