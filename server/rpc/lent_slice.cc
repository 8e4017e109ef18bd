#include "server/rpc/lent_slice.h"

#include <mutex>
#include <utility>

namespace gdpcache::rpc {
namespace {

/// What keeps lent memory. The mutex shows ThreadSanitizer the order that gRPC's counting of references keeps.
class Loan {
 public:
  explicit Loan(std::shared_ptr<const void> owner) {
    const std::lock_guard lock(mutex_);
    owner_ = std::move(owner);
  }

  static void End(void* loan) {
    auto* const self = static_cast<Loan*>(loan);
    { const std::lock_guard lock(self->mutex_); }
    delete self;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<const void> owner_;
};

}  // namespace

grpc::Slice LendSlice(const void* data, std::size_t size, std::shared_ptr<const void> owner) {
  return grpc::Slice(const_cast<void*>(data), size, &Loan::End, new Loan(std::move(owner)));  // gRPC only reads it
}

}  // namespace gdpcache::rpc
