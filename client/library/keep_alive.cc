#include "client/library/keep_alive.h"

#include <algorithm>
#include <utility>

namespace gdpcache::client {

KeepAlive::KeepAlive(std::shared_ptr<const Connection> connection, std::string session, absl::Duration ttl)
    : connection_(std::move(connection)),
      session_(std::move(session)),
      // Bounded, whatever a server says: neither a busy loop nor a wait that overflows.
      interval_(std::clamp(ttl / 3, absl::Milliseconds(10), absl::Hours(1))),
      thread_([this] { Run(); }) {}

KeepAlive::~KeepAlive() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    if (renewal_ != nullptr) renewal_->TryCancel();
    stop_.notify_all();
  }
  thread_.join();
}

absl::Status KeepAlive::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void KeepAlive::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_.wait_for(lock, absl::ToChronoNanoseconds(interval_), [this] { return stopping_; })) {
    grpc::ClientContext context;
    Connection::SetDeadline(absl::Now() + interval_, &context);
    renewal_ = &context;
    lock.unlock();
    v1::KeepAliveRequest request;
    request.set_session(session_);
    v1::KeepAliveResponse response;
    const absl::Status status = connection_->Annotate(connection_->stub().KeepAlive(&context, request, &response));
    lock.lock();
    renewal_ = nullptr;
    if (absl::IsNotFound(status)) {
      status_ = status;
      return;
    }
  }
}

}  // namespace gdpcache::client
