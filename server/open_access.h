#ifndef GDPCACHE_SERVER_OPEN_ACCESS_H_
#define GDPCACHE_SERVER_OPEN_ACCESS_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/config.h"
#include "server/rpc/access/access_control.h"

namespace gdpcache {

/// Who may use the server, as configured. `on_refusal` as in rpc::AccessOptions. Errors name the file that cannot be
/// used.
absl::StatusOr<std::shared_ptr<const rpc::AccessControl>> OpenAccess(
    const config::Config& config, std::function<void(const absl::Status&)> on_refusal);

}  // namespace gdpcache

#endif  // GDPCACHE_SERVER_OPEN_ACCESS_H_
