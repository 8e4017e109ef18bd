#ifndef GDPCACHE_SERVER_RPC_RECEIVED_H_
#define GDPCACHE_SERVER_RPC_RECEIVED_H_

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gdpcache/v1/prefill.pb.h"
#include "server/engine/staging_pool.h"
#include "server/rpc/call_log.h"

namespace gdpcache::rpc {

/// The request of a unary call, which gRPC keeps until the call is over, read as ParseMessage reads it.
template <typename Request>
struct Received {
  Request message;
  absl::Status status;                                                // why there is none
  std::int64_t kept = 0;                                              // what it takes, besides tensors
  mutable std::shared_ptr<engine::StagingAccount> account = nullptr;  // which is charged with that
};

/// Reads `bytes`, and tells how much memory the message takes that nobody else counts.
absl::Status Receive(grpc::ByteBuffer& bytes, google::protobuf::Message& message, std::int64_t& kept);

/// A call that ends with an error before anything is known of it.
grpc::ServerUnaryReactor* Refuse(CallLog& log, absl::string_view method, grpc::CallbackServerContext& context,
                                 const absl::Status& status);

}  // namespace gdpcache::rpc

namespace grpc {

/// How gRPC reads them.
template <typename Request>
class SerializationTraits<gdpcache::rpc::Received<Request>> {
 public:
  static Status Deserialize(ByteBuffer* bytes, gdpcache::rpc::Received<Request>* received) {
    received->status = gdpcache::rpc::Receive(*bytes, received->message, received->kept);
    bytes->Clear();
    return Status::OK;  // the handler says what is wrong
  }
};

}  // namespace grpc

#endif  // GDPCACHE_SERVER_RPC_RECEIVED_H_
