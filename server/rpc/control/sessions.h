#ifndef GDPCACHE_SERVER_RPC_CONTROL_SESSIONS_H_
#define GDPCACHE_SERVER_RPC_CONTROL_SESSIONS_H_

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "gdpcache/v1/session.pb.h"
#include "server/cache/catalog.h"
#include "server/rpc/deadline_thread.h"

/// The calls about sessions; session.proto documents them.
namespace gdpcache::rpc {

absl::Status OpenSession(cache::Catalog& catalog, DeadlineThread& expiry, std::string tenant,
                         const v1::OpenSessionRequest& request, v1::OpenSessionResponse& response);

absl::Status KeepAlive(cache::Catalog& catalog, const std::string& tenant, const v1::KeepAliveRequest& request,
                       v1::KeepAliveResponse& response);

/// `done` runs once, when the session's calls have ended and its slots are free or at once with an error.
void CloseSession(cache::Catalog& catalog, const std::string& tenant, const v1::CloseSessionRequest& request,
                  absl::AnyInvocable<void(absl::Status)> done);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_CONTROL_SESSIONS_H_
