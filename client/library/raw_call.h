#ifndef GDPCACHE_CLIENT_LIBRARY_RAW_CALL_H_
#define GDPCACHE_CLIENT_LIBRARY_RAW_CALL_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/library/connection.h"
#include "grpcpp/support/byte_buffer.h"

/// Calls whose messages are byte buffers. The calling thread does all the work of its call, and the call is over, with
/// every operation complete, when the function returns.
namespace gdpcache::client {

/// One message each way. `method` is "/package.Service/Method".
absl::Status RunUnary(const Connection& connection, const std::string& method, absl::Time deadline,
                      const grpc::ByteBuffer& request, grpc::ByteBuffer* response);

/// Any number of messages each way, at once. `next` makes the following message to send, or returns false when there
/// are no more. `receive` takes each message that arrives; an error it returns ends the call and is the result.
absl::Status RunStream(const Connection& connection, const std::string& method, absl::Time deadline,
                       absl::FunctionRef<bool(grpc::ByteBuffer*)> next,
                       absl::FunctionRef<absl::Status(grpc::ByteBuffer&)> receive);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_RAW_CALL_H_
