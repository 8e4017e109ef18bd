#ifndef GDPCACHE_SERVER_RPC_TENANT_H_
#define GDPCACHE_SERVER_RPC_TENANT_H_

#include <grpcpp/server_context.h>

#include <string>

namespace gdpcache::rpc {

/// Whose snapshots a caller uses: its authenticated identity, or cache::kDefaultTenant where the transport
/// authenticates nobody. Nothing that a request says has a part in it.
std::string TenantOf(const grpc::ServerContextBase& context);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_TENANT_H_
