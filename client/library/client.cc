#include "gdpcache/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/library/connection.h"
#include "client/library/convert.h"
#include "client/library/health.h"
#include "client/library/session_impl.h"
#include "client/library/stats.h"

namespace gdpcache {
namespace {

using Stub = v1::StateCache::StubInterface;

absl::StatusOr<CacheInfo> FindCache(const std::vector<CacheInfo>& caches, const std::string& name) {
  const auto found =
      std::find_if(caches.begin(), caches.end(), [&name](const CacheInfo& cache) { return cache.name == name; });
  if (found == caches.end()) return absl::NotFoundError(absl::StrCat("cache '", name, "' was deleted meanwhile"));
  return *found;
}

}  // namespace

absl::Status CheckAddress(absl::string_view address) { return client::GrpcTarget(address).status(); }

absl::StatusOr<ServingStatus> CheckHealth(const std::string& address, const ClientOptions& options,
                                          HealthQuestion question) {
  const absl::StatusOr<std::shared_ptr<const client::Connection>> connection =
      client::Connection::Open(address, options);
  if (!connection.ok()) return connection.status();
  return client::AskHealth(**connection, question, absl::Now() + std::min(options.timeout, options.connect_timeout));
}

absl::StatusOr<Client> Client::Connect(const std::string& address, const ClientOptions& options) {
  absl::StatusOr<std::shared_ptr<const client::Connection>> connection = client::Connection::Open(address, options);
  if (!connection.ok()) return connection.status();
  grpc::ClientContext context;
  client::Connection::SetDeadline(absl::Now() + options.connect_timeout, &context);
  context.set_wait_for_ready(options.wait_for_server);
  v1::GetServerInfoResponse response;
  const grpc::Status status = (*connection)->stub().GetServerInfo(&context, {}, &response);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::UnavailableError(
        absl::StrCat("server ", address, ": no answer within ", absl::FormatDuration(options.connect_timeout)));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(
        absl::StrCat("server ", address, " is no gdpcache server: ", status.error_message()));
  }
  if (!status.ok()) return (*connection)->Annotate(status);
  return Client(*std::move(connection));
}

Client::Client(std::shared_ptr<const client::Connection> connection) : connection_(std::move(connection)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

const std::string& Client::address() const { return connection_->address(); }

absl::StatusOr<ServerInfo> Client::GetServerInfo(const CallOptions& options) const {
  v1::GetServerInfoResponse response;
  const absl::Status status = connection_->Call(&Stub::GetServerInfo, options, v1::GetServerInfoRequest(), &response);
  if (!status.ok()) return status;
  return client::FromProto(response);
}

absl::StatusOr<ServerStats> Client::GetServerStats(const CallOptions& options) const {
  v1::GetServerStatsResponse response;
  const absl::Status status = connection_->Call(&Stub::GetServerStats, options, v1::GetServerStatsRequest(), &response);
  if (!status.ok()) return status;
  return client::FromProto(response);
}

absl::StatusOr<CreatedCache> Client::CreateCache(const CacheSpec& spec, const CallOptions& options) const {
  v1::CreateCacheRequest request;
  request.set_name(spec.name);
  client::ToProto(spec.geometry, request.mutable_geometry());
  request.set_fingerprint(spec.fingerprint);
  request.set_ephemeral(spec.ephemeral);
  v1::CreateCacheResponse response;
  const absl::Status status = connection_->Call(&Stub::CreateCache, options, request, &response);
  if (!status.ok()) return status;
  return CreatedCache{client::FromProto(response.cache()), response.created()};
}

absl::Status Client::DeleteCache(const std::string& name, bool force, const CallOptions& options) const {
  v1::DeleteCacheRequest request;
  request.set_name(name);
  request.set_force(force);
  v1::DeleteCacheResponse response;
  return connection_->Call(&Stub::DeleteCache, options, request, &response);
}

absl::StatusOr<std::vector<CacheInfo>> Client::ListCaches(const CallOptions& options) const {
  v1::ListCachesResponse response;
  const absl::Status status = connection_->Call(&Stub::ListCaches, options, v1::ListCachesRequest(), &response);
  if (!status.ok()) return status;
  std::vector<CacheInfo> caches;
  for (const v1::Cache& cache : response.caches()) caches.push_back(client::FromProto(cache));
  return caches;
}

absl::StatusOr<SlotList> Client::ListSlots(const std::string& cache, const CallOptions& options) const {
  v1::ListSlotsRequest request;
  request.set_cache(cache);
  v1::ListSlotsResponse response;
  const absl::Status status = connection_->Call(&Stub::ListSlots, options, request, &response);
  if (!status.ok()) return status;
  return client::FromProto(response);
}

absl::StatusOr<Session> Client::OpenSession(const std::string& cache, const SessionOptions& session,
                                            const CallOptions& options) const {
  v1::OpenSessionRequest request;
  request.set_cache(cache);
  request.set_ttl_ms(absl::ToInt64Milliseconds(session.ttl));
  request.set_client_name(session.client_name);
  v1::OpenSessionResponse response;
  const absl::Status status = connection_->Call(&Stub::OpenSession, options, request, &response);
  if (!status.ok()) return status;

  auto impl = std::make_unique<Session::Impl>();
  impl->connection = connection_;
  impl->id = response.session();
  impl->cache = cache;
  impl->ttl = absl::Milliseconds(response.ttl_ms());
  Session opened(std::move(impl));  // closed again on an error from here on
  // Sizes of results follow from the geometry. It stays as it is while a session is open.
  const absl::StatusOr<std::vector<CacheInfo>> caches = ListCaches(options);
  if (!caches.ok()) return caches.status();
  const absl::StatusOr<CacheInfo> info = FindCache(*caches, cache);
  if (!info.ok()) return info.status();
  opened.impl_->geometry = info->geometry;
  if (session.keep_alive) {
    opened.impl_->keep_alive = std::make_unique<client::KeepAlive>(connection_, opened.impl_->id, opened.impl_->ttl);
  }
  return opened;
}

}  // namespace gdpcache
