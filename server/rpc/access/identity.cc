#include "server/rpc/access/identity.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace gdpcache::rpc {

absl::string_view NameOf(Permission permission) {
  switch (permission) {
    case Permission::kRead:
      return "read";
    case Permission::kData:
      return "data";
    case Permission::kAdmin:
      return "admin";
  }
  return "";
}

std::optional<Permission> PermissionFor(absl::string_view method) {
  static const auto& reading =
      *new absl::flat_hash_set<absl::string_view>{"GetServerInfo", "GetServerStats", "ListCaches",      "ListSlots",
                                                  "ListSnapshots", "WatchSnapshots", "QueryWriteStatus"};
  if (absl::StartsWith(method, "/grpc.health.v1.Health/")) return std::nullopt;
  if (absl::StartsWith(method, "/grpc.reflection.")) return Permission::kRead;
  if (absl::StartsWith(method, "/grpc.channelz.")) return Permission::kAdmin;  // tells of everybody's connections
  // What is not known here is none of the readers' business: a method added later is not open to them by oversight.
  if (!absl::ConsumePrefix(&method, "/gdpcache.v1.StateCache/")) return Permission::kData;
  if (method == "DeleteCache") return Permission::kAdmin;
  return reading.contains(method) ? Permission::kRead : Permission::kData;
}

}  // namespace gdpcache::rpc
