#ifndef GDPCACHE_CLIENT_LIBRARY_STATUS_CONVERSION_H_
#define GDPCACHE_CLIENT_LIBRARY_STATUS_CONVERSION_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace gdpcache::client {

/// The same code and message; the google.rpc details of the trailer become payloads under their type URLs.
absl::Status ToAbslStatus(const grpc::Status& status);

/// INTERNAL: the server's answer breaks the protocol.
absl::Status ProtocolError(absl::string_view message);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_STATUS_CONVERSION_H_
