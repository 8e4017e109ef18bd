#ifndef GDPCACHE_SERVER_RPC_STATUS_H_
#define GDPCACHE_SERVER_RPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace gdpcache::rpc {

/// The one way an error of the server becomes an answer: same code, the message, and the details that cache/errors.h
/// knows as google.rpc messages (BadRequest, RetryInfo, ResourceInfo) or gdpcache.v1.PositionMismatch, wrapped in a
/// google.rpc.Status.
///
/// All of it travels in a trailer, for which clients allow 8 KiB by default. So a message is cut after 512 bytes, and
/// PositionMismatch lists as many slots as fit in 3 KiB.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_STATUS_H_
