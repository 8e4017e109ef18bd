#ifndef GDPCACHE_SERVER_RPC_MEMORY_MEMORY_PLANE_H_
#define GDPCACHE_SERVER_RPC_MEMORY_MEMORY_PLANE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gdpcache/v1/memory.pb.h"
#include "kernels/memory_sharing.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"
#include "server/cache/memory/region.h"
#include "server/cache/task_thread.h"
#include "server/cache/tenant_share.h"
#include "server/rpc/access/access_control.h"
#include "server/rpc/call_log.h"
#include "server/rpc/memory/descriptor_socket.h"

/// The calls about shared memory. Each function takes over one RPC and returns its reactor, which deletes itself when
/// the RPC is over.
namespace gdpcache::rpc {

/// What the calls work on; outlives them, and the server that they belong to. Thread-safe but for Listen. Regions come
/// and go on `thread`, which must outlive the sessions: mapping memory lasts, and so does giving it back.
class MemoryPlane {
 public:
  static constexpr std::int64_t kMaxRegions = 10'000;

  /// `bytes` of system memory all sessions together may share, and those of one tenant its `share`; 0: sharing is off.
  /// `sharing` may be nullptr.
  MemoryPlane(cache::Catalog& catalog, cache::TaskThread& thread, const cache::Clock& clock,
              const AccessControl& access, CallLog& log, kernels::MemorySharing* sharing, std::int64_t bytes,
              cache::TenantShare share = {})
      : catalog_(catalog),
        thread_(thread),
        clock_(clock),
        access_(access),
        log_(log),
        sharing_(bytes > 0 ? sharing : nullptr),
        share_(share),
        budget_(std::make_shared<cache::RegionBudget>(bytes, kMaxRegions)) {}
  MemoryPlane(const MemoryPlane&) = delete;
  MemoryPlane& operator=(const MemoryPlane&) = delete;
  ~MemoryPlane() { thread_.Finish(); }

  /// Takes descriptors, and gives tokens, on a socket at `path`; without it, or where sharing is off, nothing is
  /// shared. Before the first call.
  absl::Status Listen(const std::string& path);

  /// A session of the caller's tenant; NOT_FOUND.
  absl::StatusOr<std::shared_ptr<cache::Session>> FindSession(const grpc::CallbackServerContext& context,
                                                              const std::string& id) const;

  DescriptorSocket* descriptors() const { return descriptors_.get(); }  // nullptr: none
  kernels::MemorySharing* sharing() const { return sharing_; }          // nullptr: none
  bool shares_cuda() const { return sharing_ != nullptr && descriptors_ != nullptr; }
  /// What the regions of a tenant may take.
  std::shared_ptr<cache::RegionBudget> BudgetOf(const std::string& tenant) const;
  cache::TaskThread& thread() const { return thread_; }
  CallLog& log() const { return log_; }

 private:
  cache::Catalog& catalog_;
  cache::TaskThread& thread_;
  const cache::Clock& clock_;
  const AccessControl& access_;
  CallLog& log_;
  kernels::MemorySharing* const sharing_;
  const cache::TenantShare share_;
  const std::shared_ptr<cache::RegionBudget> budget_;
  std::unique_ptr<DescriptorSocket> descriptors_;
  mutable std::mutex mutex_;  // guards what follows
  mutable absl::flat_hash_map<std::string, std::shared_ptr<cache::RegionBudget>> tenants_;
};

/// Whether a gRPC peer is on this host: a Unix socket or a loopback address.
bool IsLocalPeer(absl::string_view peer);

grpc::ServerUnaryReactor* HandleRegisterSystemMemory(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                     const v1::RegisterSystemMemoryRequest* request,
                                                     v1::RegisterSystemMemoryResponse* response);
grpc::ServerUnaryReactor* HandleRegisterCudaMemory(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                   const v1::RegisterCudaMemoryRequest* request,
                                                   v1::RegisterCudaMemoryResponse* response);
grpc::ServerUnaryReactor* HandleRegisterCudaEvent(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                  const v1::RegisterCudaEventRequest* request,
                                                  v1::RegisterCudaEventResponse* response);
grpc::ServerUnaryReactor* HandleUnregisterMemory(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::UnregisterMemoryRequest* request,
                                                 v1::UnregisterMemoryResponse* response);
grpc::ServerUnaryReactor* HandleListSharedMemory(const MemoryPlane& plane, grpc::CallbackServerContext* context,
                                                 const v1::ListSharedMemoryRequest* request,
                                                 v1::ListSharedMemoryResponse* response);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_MEMORY_MEMORY_PLANE_H_
