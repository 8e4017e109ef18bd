#include "server/rpc/control/sessions.h"

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gdpcache::rpc {

absl::Status OpenSession(cache::Catalog& catalog, DeadlineThread& expiry, std::string tenant,
                         const v1::OpenSessionRequest& request, v1::OpenSessionResponse& response) {
  const absl::StatusOr<std::shared_ptr<cache::Session>> session = catalog.OpenSession(
      request.cache(), absl::Milliseconds(request.ttl_ms()), request.client_name(), std::move(tenant));
  if (!session.ok()) return session.status();
  expiry.Expect((*session)->expires_at());
  response.set_session((*session)->id());
  response.set_ttl_ms(absl::ToInt64Milliseconds((*session)->ttl()));
  return absl::OkStatus();
}

absl::Status KeepAlive(cache::Catalog& catalog, const std::string& tenant, const v1::KeepAliveRequest& request,
                       v1::KeepAliveResponse& response) {
  const absl::StatusOr<std::shared_ptr<cache::Session>> session = catalog.FindSession(request.session(), tenant);
  if (!session.ok()) return session.status();
  response.set_ttl_ms(absl::ToInt64Milliseconds((*session)->ttl()));
  return absl::OkStatus();
}

void CloseSession(cache::Catalog& catalog, const std::string& tenant, const v1::CloseSessionRequest& request,
                  absl::AnyInvocable<void(absl::Status)> done) {
  // Only one of the two ways runs it.
  const auto shared_done = std::make_shared<absl::AnyInvocable<void(absl::Status)>>(std::move(done));
  const absl::Status status =
      catalog.CloseSession(request.session(), tenant, [shared_done] { (*shared_done)(absl::OkStatus()); });
  if (!status.ok()) (*shared_done)(status);
}

}  // namespace gdpcache::rpc
