#ifndef GDPCACHE_CLIENT_LIBRARY_CREDENTIALS_H_
#define GDPCACHE_CLIENT_LIBRARY_CREDENTIALS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gdpcache/options.h"
#include "grpcpp/security/credentials.h"

namespace gdpcache::client {

/// What a channel to `address`, a valid one, encrypts with and sends with every call. INVALID_ARGUMENT names a file
/// that cannot be used, options that contradict each other, and a host to which a token would travel in clear text.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const std::string& address,
                                                                          const ClientOptions& options);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_CREDENTIALS_H_
