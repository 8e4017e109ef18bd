#ifndef GDPCACHE_CLIENT_LIBRARY_HEALTH_H_
#define GDPCACHE_CLIENT_LIBRARY_HEALTH_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/library/connection.h"
#include "gdpcache/client.h"

namespace gdpcache::client {

/// Calls grpc.health.v1.Health/Check: for the StateCache service, or for the server as a whole.
absl::StatusOr<ServingStatus> AskHealth(const Connection& connection, HealthQuestion question, absl::Time deadline);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_HEALTH_H_
