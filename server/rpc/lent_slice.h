#ifndef GDPCACHE_SERVER_RPC_LENT_SLICE_H_
#define GDPCACHE_SERVER_RPC_LENT_SLICE_H_

#include <grpcpp/support/slice.h>

#include <cstddef>
#include <memory>

namespace gdpcache::rpc {

/// A slice of memory that stays where it is; `owner` is let go, on any thread, when gRPC needs it no more.
grpc::Slice LendSlice(const void* data, std::size_t size, std::shared_ptr<const void> owner);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_LENT_SLICE_H_
