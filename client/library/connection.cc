#include "client/library/connection.h"

#include <grpc/grpc.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/library/credentials.h"
#include "client/library/status_conversion.h"
#include "grpcpp/create_channel.h"
#include "proto/sockets/socket_path.h"

namespace gdpcache::client {
namespace {

/// Of one message from the server. Its frames are about a megabyte, and larger unary answers come as a stream.
constexpr int kMaxReceiveBytes = 64 << 20;

/// How long the kernel lets a TCP write wait for a peer that has stopped reading before it breaks the connection: gRPC
/// derives TCP_USER_TIMEOUT from the keep-alive timeout. It bounds how long a call that has ended keeps borrowing its
/// caller's memory. The pings themselves stay rarer than the five minutes which servers take without complaint.
constexpr int kStuckWriteTimeoutMs = 20'000;
constexpr int kKeepAlivePingMs = 6 * 60 * 1000;

constexpr absl::Duration kDestructorTimeout = absl::Seconds(5);

constexpr absl::string_view kUnix = "unix:";

absl::Status AddressError(absl::string_view address, absl::string_view reason) {
  return absl::InvalidArgumentError(
      absl::StrCat("the server address is '", address, "': ", reason, "; it must be host:port or unix:PATH"));
}

}  // namespace

absl::StatusOr<std::string> GrpcTarget(absl::string_view address) {
  if (absl::StartsWith(address, kUnix)) {
    const absl::string_view path = address.substr(kUnix.size());
    if (path.empty()) return AddressError(address, "the path is missing");
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
      return AddressError(address, absl::StrCat("the path has ", path.size(), " bytes, a socket's at most ",
                                                sizeof(sockaddr_un::sun_path) - 1));
    }
    return std::string(address);
  }
  const std::size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return AddressError(address, "the port is missing");
  const absl::string_view host = address.substr(0, colon);
  const absl::string_view port = address.substr(colon + 1);
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (host.empty() || host.find('/') != absl::string_view::npos ||
      (!bracketed && host.find(':') != absl::string_view::npos)) {
    return AddressError(address, absl::StrCat("'", host, "' is no host name"));
  }
  std::int64_t number = 0;
  if (!absl::SimpleAtoi(port, &number) || number < 1 || number > 65535) {
    return AddressError(address, absl::StrCat("'", port, "' is no port between 1 and 65535"));
  }
  return absl::StrCat("dns:///", address);
}

absl::StatusOr<std::shared_ptr<const Connection>> Connection::Open(const std::string& address,
                                                                   const ClientOptions& options) {
  const absl::StatusOr<std::string> target = GrpcTarget(address);
  if (!target.ok()) return target.status();
  if (absl::StartsWith(address, kUnix)) {
    const absl::Status status = CheckSocketPath(address.substr(kUnix.size()));
    // gRPC connects later, and anew when a connection breaks: a name that is free now may be anybody's by then.
    if (!status.ok()) return absl::FailedPreconditionError(absl::StrCat("server ", address, ": ", status.message()));
  }
  // Otherwise the end of the last channel shuts the library down, which gRPC 1.51 now and then does 10 seconds late.
  static const bool kInitialised = (grpc_init(), true);
  static_cast<void>(kInitialised);
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = MakeCredentials(address, options);
  if (!credentials.ok()) return credentials.status();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  arguments.SetMaxSendMessageSize(-1);  // the server is the judge
  // A connection of its own for every client: bulk calls of one do not queue behind another's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Tensors do not travel through a web proxy that happens to be configured for the machine.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAlivePingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kStuckWriteTimeoutMs);
  if (options.tls.has_value() && !options.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  return std::shared_ptr<const Connection>(
      new Connection(address, options, grpc::CreateCustomChannel(*target, *credentials, arguments)));
}

Connection::Connection(std::string address, const ClientOptions& options, const std::shared_ptr<grpc::Channel>& channel)
    : address_(std::move(address)),
      options_(options),
      stub_(v1::StateCache::NewStub(channel)),
      raw_stub_(std::make_unique<grpc::GenericStub>(channel)) {}

absl::Time Connection::Deadline(const CallOptions& options) const {
  return absl::Now() + options.timeout.value_or(options_.timeout);
}

CallOptions Connection::DestructorOptions() const {
  return {.timeout = std::min(options_.timeout, kDestructorTimeout)};
}

absl::Status Connection::Annotate(const grpc::Status& status) const {
  // Without a detail it is not this server's: gRPC ends so what arrives when the server has just stopped.
  if (status.error_code() == grpc::StatusCode::CANCELLED && status.error_details().empty()) {
    return absl::UnavailableError(absl::StrCat("server ", address_, ": it ended the call, as when it stops"));
  }
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return ToAbslStatus(status);
  return ToAbslStatus(grpc::Status(status.error_code(), absl::StrCat("server ", address_, ": ", status.error_message()),
                                   status.error_details()));
}

void Connection::SetDeadline(absl::Time deadline, grpc::ClientContext* context) {
  if (deadline != absl::InfiniteFuture()) context->set_deadline(absl::ToChronoTime(deadline));
}

}  // namespace gdpcache::client
