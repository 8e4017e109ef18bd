#include "server/open_access.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "server/config/listen_address.h"

namespace gdpcache {
namespace {

rpc::Permission Decode(int permission) {
  switch (permission) {
    case config::v1::Identity::DATA:
      return rpc::Permission::kData;
    case config::v1::Identity::ADMIN:
      return rpc::Permission::kAdmin;
    default:
      return rpc::Permission::kRead;
  }
}

bool IsOpenToOthers(const config::Config& config) {
  return std::any_of(config.listen.begin(), config.listen.end(), [](const std::string& address) {
    const absl::StatusOr<config::ListenAddress> parsed = config::ParseListenAddress(address);
    return parsed.ok() && !parsed->is_loopback();
  });
}

}  // namespace

absl::StatusOr<std::shared_ptr<const rpc::AccessControl>> OpenAccess(
    const config::Config& config, std::function<void(const absl::Status&)> on_refusal) {
  const config::AccessConfig& access = config.access;
  rpc::AccessOptions options;
  options.on_refusal = std::move(on_refusal);
  for (const config::v1::Identity& from : access.identities) {
    rpc::Identity identity = {
        .name = from.name(), .tenant = from.tenant(), .permissions = {}, .by_own_user = from.has_uid()};
    for (const int permission : from.permissions()) identity.permissions.insert(Decode(permission));
    options.identities.push_back(std::move(identity));
  }
  options.token_file = access.token_file;
  options.tls = {.certificate = access.tls_certificate, .key = access.tls_key, .client_ca = access.tls_client_ca};
  if (access.identities.empty() && access.tls_client_ca.empty() && IsOpenToOthers(config)) {
    spdlog::warn("nobody is authenticated: whoever reaches the port may use the server");
  }
  return rpc::AccessControl::Create(std::move(options));
}

}  // namespace gdpcache
