#include "server/rpc/memory/memory_plane.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/rpc/unary_call.h"

namespace gdpcache::rpc {
namespace {

using Session = std::shared_ptr<cache::Session>;
using NewRegion = absl::StatusOr<std::shared_ptr<cache::Region>>;

grpc::ServerUnaryReactor* Answered(UnaryCall* call, const absl::Status& status) {
  call->Answer(status);
  return call;
}

/// Answers what `make`, run on the plane's thread, comes to: a region that becomes the session's.
template <typename Request>
grpc::ServerUnaryReactor* Register(const MemoryPlane& plane, absl::string_view method,
                                   grpc::CallbackServerContext& context, const Request& request, bool available,
                                   absl::string_view transport,
                                   absl::AnyInvocable<NewRegion(std::shared_ptr<cache::RegionBudget>)> make) {
  auto* call = new UnaryCall(plane.log(), method, context);
  if (!available) {
    return Answered(call,
                    absl::UnimplementedError(absl::StrCat("this server does not offer the transport ", transport)));
  }
  if (!IsLocalPeer(context.peer())) {
    return Answered(call, absl::PermissionDeniedError("shared memory is for clients on the server's own host"));
  }
  absl::StatusOr<Session> session = plane.FindSession(context, request.session());
  if (!session.ok()) return Answered(call, session.status());
  call->rpc().SetSession(**session);
  std::shared_ptr<cache::RegionBudget> budget = plane.BudgetOf((*session)->tenant());
  // The request lives until the call is answered.
  plane.thread().Run([&plane, call, budget = std::move(budget), session = *std::move(session), &name = request.name(),
                      make = std::move(make)]() mutable {
    NewRegion region = make(std::move(budget));
    absl::Status status = region.status();
    if (status.ok()) status = session->regions().Add(name, plane.thread().EndHere(*std::move(region)));
    call->Answer(status);
  });
  return call;
}

v1::SharedMemoryKind Encode(cache::RegionKind kind) {
  switch (kind) {
    case cache::RegionKind::kSystem:
      return v1::SHARED_MEMORY_KIND_SYSTEM;
    case cache::RegionKind::kCuda:
      return v1::SHARED_MEMORY_KIND_CUDA;
    case cache::RegionKind::kCudaEvent:
      return v1::SHARED_MEMORY_KIND_CUDA_EVENT;
  }
  return v1::SHARED_MEMORY_KIND_UNSPECIFIED;
}

}  // namespace

absl::Status MemoryPlane::Listen(const std::string& path) {
  if (budget_->bytes.limit() == 0) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<DescriptorSocket>> socket = DescriptorSocket::Listen(path, clock_);
  if (!socket.ok()) return socket.status();
  descriptors_ = *std::move(socket);
  return absl::OkStatus();
}

absl::StatusOr<Session> MemoryPlane::FindSession(const grpc::CallbackServerContext& context,
                                                 const std::string& id) const {
  const absl::StatusOr<const Identity*> caller = access_.CallerOf(context);
  if (!caller.ok()) return caller.status();
  return catalog_.FindSession(id, (*caller)->tenant);
}

std::shared_ptr<cache::RegionBudget> MemoryPlane::BudgetOf(const std::string& tenant) const {
  if (share_.is_all()) return budget_;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<cache::RegionBudget>& budget = tenants_[tenant];
  if (budget == nullptr) {
    budget = std::make_shared<cache::RegionBudget>(share_.Of(budget_->bytes.limit()), share_.Of(kMaxRegions), budget_);
  }
  return budget;
}

bool IsLocalPeer(absl::string_view peer) {
  for (const absl::string_view local : {"unix:", "ipv4:127.", "ipv6:[::1]:", "ipv6:%5B::1%5D:"}) {
    if (absl::StartsWith(peer, local)) return true;
  }
  return false;
}

grpc::ServerUnaryReactor* HandleRegisterSystemMemory(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                     const v1::RegisterSystemMemoryRequest* request,
                                                     v1::RegisterSystemMemoryResponse* /*response*/) {
  return Register(plane, "RegisterSystemMemory", *context, *request, plane.descriptors() != nullptr, "shared_memory",
                  [&plane, request](std::shared_ptr<cache::RegionBudget> budget) -> NewRegion {
                    const absl::StatusOr<Descriptor> descriptor = plane.descriptors()->Take(request->token());
                    if (!descriptor.ok()) return descriptor.status();
                    return cache::MapMemfd(descriptor->get(), request->offset(), request->size(), plane.sharing(),
                                           std::move(budget));
                  });
}

grpc::ServerUnaryReactor* HandleRegisterCudaMemory(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                   const v1::RegisterCudaMemoryRequest* request,
                                                   v1::RegisterCudaMemoryResponse* /*response*/) {
  return Register(plane, "RegisterCudaMemory", *context, *request, plane.shares_cuda(), "cuda_ipc",
                  [&plane, request](std::shared_ptr<cache::RegionBudget> budget) -> NewRegion {
                    const absl::Status pass = plane.descriptors()->TakePass(request->token());
                    if (!pass.ok()) return pass;
                    return cache::OpenCudaMemory(request->handle(), request->offset(), request->size(),
                                                 *plane.sharing(), std::move(budget));
                  });
}

grpc::ServerUnaryReactor* HandleRegisterCudaEvent(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                  const v1::RegisterCudaEventRequest* request,
                                                  v1::RegisterCudaEventResponse* /*response*/) {
  return Register(plane, "RegisterCudaEvent", *context, *request, plane.shares_cuda(), "cuda_ipc",
                  [&plane, request](std::shared_ptr<cache::RegionBudget> budget) -> NewRegion {
                    const absl::Status pass = plane.descriptors()->TakePass(request->token());
                    if (!pass.ok()) return pass;
                    return cache::OpenCudaEvent(request->handle(), *plane.sharing(), std::move(budget));
                  });
}

grpc::ServerUnaryReactor* HandleUnregisterMemory(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::UnregisterMemoryRequest* request,
                                                 v1::UnregisterMemoryResponse* /*response*/) {
  auto* call = new UnaryCall(plane.log(), "UnregisterMemory", *context);
  absl::StatusOr<Session> session = plane.FindSession(*context, request->session());
  if (!session.ok()) return Answered(call, session.status());
  call->rpc().SetSession(**session);
  plane.thread().Run([call, request, session = *std::move(session)] {
    const absl::Status status = session->regions().Remove(request->name(), [call] { call->Answer(absl::OkStatus()); });
    if (!status.ok()) call->Answer(status);
  });
  return call;
}

grpc::ServerUnaryReactor* HandleListSharedMemory(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::ListSharedMemoryRequest* request,
                                                 v1::ListSharedMemoryResponse* response) {
  auto* call = new UnaryCall(plane.log(), "ListSharedMemory", *context);
  const absl::StatusOr<Session> session = plane.FindSession(*context, request->session());
  if (!session.ok()) return Answered(call, session.status());
  call->rpc().SetSession(**session);
  for (const cache::SessionRegions::Entry& entry : (*session)->regions().List()) {
    v1::SharedMemoryRegion& region = *response->add_regions();
    region.set_name(entry.name);
    region.set_kind(Encode(entry.kind));
    region.set_size(entry.size);
    region.set_uses(entry.uses);
  }
  return Answered(call, absl::OkStatus());
}

}  // namespace gdpcache::rpc
