#include "server/rpc/tenant.h"

#include <grpcpp/security/auth_context.h>

#include <memory>
#include <vector>

#include "server/cache/session.h"

namespace gdpcache::rpc {

std::string TenantOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer != nullptr && peer->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> identity = peer->GetPeerIdentity();
    if (!identity.empty()) return std::string(identity.front().data(), identity.front().size());
  }
  return std::string(cache::kDefaultTenant);
}

}  // namespace gdpcache::rpc
