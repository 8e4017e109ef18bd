#ifndef GDPCACHE_SERVER_RPC_MESSAGE_MEMORY_H_
#define GDPCACHE_SERVER_RPC_MESSAGE_MEMORY_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"

/// What strangers' messages take once they are read. Two bytes on the wire become an object of a hundred: a field that
/// nobody knows, a message without fields.
namespace gdpcache::rpc {

/// What the objects of one message may take, besides its own bytes. The largest that anybody needs, of 65,536
/// sequences with a snapshot each, take a fraction of it.
constexpr std::int64_t kMaxObjectBytes = std::int64_t{64} << 20;

/// Whether a message of this type may be read, judged by its bytes before there are objects. INVALID_ARGUMENT names
/// what they would take, about, and what they may. Bytes that are no message are the reader's to refuse.
absl::Status CheckObjects(const grpc::ByteBuffer& bytes, const google::protobuf::Descriptor& type);

/// The same of a frame: a message of `type` in its field `field`. Its other fields become no objects.
absl::Status CheckObjectsOfFrame(const grpc::ByteBuffer& bytes, const google::protobuf::Descriptor& type, int field);

/// Drops the fields that nobody knows, and tells what the message takes without them.
std::int64_t Trim(google::protobuf::Message& message);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_MESSAGE_MEMORY_H_
