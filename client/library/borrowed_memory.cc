#include "client/library/borrowed_memory.h"

namespace gdpcache::client {
namespace {

constexpr std::size_t kCopiedBytes = 4096;

}  // namespace

BorrowedMemory::~BorrowedMemory() {
  std::unique_lock<std::mutex> lock(mutex_);
  returned_.wait(lock, [this] { return lent_ == 0; });
}

grpc::Slice BorrowedMemory::Lend(const void* data, std::size_t size) {
  if (size <= kCopiedBytes) return grpc::Slice(data, size);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++lent_;
  }
  // gRPC only reads slices.
  return grpc::Slice(const_cast<void*>(data), size, &BorrowedMemory::Return, this);
}

void BorrowedMemory::Return(void* self) {
  auto* memory = static_cast<BorrowedMemory*>(self);
  // Notified under the lock: the waiter may destroy the object as soon as it has the lock.
  const std::lock_guard<std::mutex> lock(memory->mutex_);
  if (--memory->lent_ == 0) memory->returned_.notify_all();
}

}  // namespace gdpcache::client
