#ifndef GDPCACHE_CLIENT_LIBRARY_BORROWED_MEMORY_H_
#define GDPCACHE_CLIENT_LIBRARY_BORROWED_MEMORY_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "grpcpp/support/slice.h"

namespace gdpcache::client {

/// Lends a caller's memory to gRPC without a copy, and knows when gRPC has let go of it: gRPC may hold a slice beyond
/// the end of its call, for instance in a write that the socket has not taken yet.
///
/// Declare it before the call's context, so that the call is gone when the destructor waits. Thread-safe.
class BorrowedMemory {
 public:
  BorrowedMemory() = default;
  BorrowedMemory(const BorrowedMemory&) = delete;
  BorrowedMemory& operator=(const BorrowedMemory&) = delete;

  /// Waits until nothing lent is in use any more.
  ~BorrowedMemory();

  /// A slice of these bytes. Small ones are copied, which is cheaper than keeping account of them.
  grpc::Slice Lend(const void* data, std::size_t size);

 private:
  static void Return(void* self);

  std::mutex mutex_;
  std::condition_variable returned_;
  std::int64_t lent_ = 0;
};

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_BORROWED_MEMORY_H_
