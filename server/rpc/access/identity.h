#ifndef GDPCACHE_SERVER_RPC_ACCESS_IDENTITY_H_
#define GDPCACHE_SERVER_RPC_ACCESS_IDENTITY_H_

#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"

namespace gdpcache::rpc {

/// What a caller may do; server_config.proto documents the values.
enum class Permission { kRead, kData, kAdmin };

/// "read", "data" or "admin".
absl::string_view NameOf(Permission permission);

/// Somebody who may use the server. `name` is what a token or a certificate says; callers of one tenant share
/// snapshots, and nothing else is shared between tenants but the caches themselves.
struct Identity {
  std::string name;
  std::string tenant;
  std::set<Permission> permissions;
  bool by_own_user = false;  // who is on the Unix socket and presents no token; of one at most

  bool May(Permission permission) const {
    return permissions.contains(permission) || (permission == Permission::kRead && !permissions.empty());
  }
};

/// What the method, "/package.Service/Method", needs; none: it is open to everybody, for probes.
std::optional<Permission> PermissionFor(absl::string_view method);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_ACCESS_IDENTITY_H_
