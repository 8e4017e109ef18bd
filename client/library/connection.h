#ifndef GDPCACHE_CLIENT_LIBRARY_CONNECTION_H_
#define GDPCACHE_CLIENT_LIBRARY_CONNECTION_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gdpcache/options.h"
#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"

namespace gdpcache::client {

/// One gRPC channel and what calls over it need. Thread-safe. A client and its sessions share it.
class Connection {
 public:
  /// Makes the channel; gRPC connects on the first call. INVALID_ARGUMENT for a malformed address and for
  /// credentials that cannot be used, FAILED_PRECONDITION for a Unix socket that another user may have put there.
  static absl::StatusOr<std::shared_ptr<const Connection>> Open(const std::string& address,
                                                                const ClientOptions& options);

  const std::string& address() const { return address_; }

  /// When a call that starts now has to end.
  absl::Time Deadline(const CallOptions& options) const;

  /// Of what a destructor asks of the server: it does not wait for long where that does not answer.
  CallOptions DestructorOptions() const;

  /// The stub for calls without bulk data.
  v1::StateCache::StubInterface& stub() const { return *stub_; }

  /// The stub for calls whose messages this library encodes itself.
  grpc::GenericStub& raw_stub() const { return *raw_stub_; }

  /// Runs one call of stub() with that deadline, and annotates an error with the address where nobody was reached.
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::StateCache::StubInterface::*method)(grpc::ClientContext*, const Request&,
                                                                          Response*),
                    const CallOptions& options, const Request& request, Response* response) const {
    grpc::ClientContext context;
    SetDeadline(Deadline(options), &context);
    return Annotate((stub_.get()->*method)(&context, request, response));
  }

  /// As ToAbslStatus, of a call that has not been cancelled here; where the server could not be reached, or was
  /// stopping, it is UNAVAILABLE with its address.
  absl::Status Annotate(const grpc::Status& status) const;

  static void SetDeadline(absl::Time deadline, grpc::ClientContext* context);

 private:
  Connection(std::string address, const ClientOptions& options, const std::shared_ptr<grpc::Channel>& channel);

  std::string address_;
  ClientOptions options_;
  std::unique_ptr<v1::StateCache::StubInterface> stub_;
  std::unique_ptr<grpc::GenericStub> raw_stub_;
};

/// "host:port" or "unix:PATH" as a target that gRPC understands.
absl::StatusOr<std::string> GrpcTarget(absl::string_view address);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_CONNECTION_H_
