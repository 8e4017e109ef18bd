#ifndef GDPCACHE_SERVER_RPC_UNARY_REACTOR_H_
#define GDPCACHE_SERVER_RPC_UNARY_REACTOR_H_

#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <mutex>

namespace gdpcache::rpc {

/// One unary RPC in progress; deletes itself when it has answered and gRPC is done with it. Its mutex is taken by
/// whatever gRPC calls, and before the answer, so that the order gRPC guarantees is visible to ThreadSanitizer, too.
class UnaryReactor : public grpc::ServerUnaryReactor {
 public:
  ~UnaryReactor() override;
  void OnCancel() final;
  void OnDone() final;
  /// Both may run on whichever of gRPC's threads finds out, below Finish, too. Waking another one for each RPC, as gRPC
  /// does otherwise, is a third of what an empty RPC costs the server.
  bool InternalInlineable() final { return true; }

 protected:
  UnaryReactor();

  /// Sends the answer. Once, on any thread, without the mutex; nothing of this object may be used afterwards.
  void Answer(const grpc::Status& status);

  /// The client has given up. Must not block.
  virtual void Cancelled() = 0;

  /// gRPC frees the call's context and messages when this has returned, maybe before Answer has: the last moment to let
  /// go of them.
  virtual void Ended() {}

  std::mutex& mutex() { return mutex_; }

 private:
  /// Whoever comes last deletes the object.
  void Leave();

  std::mutex mutex_;
  int users_ = 2;  // Answer and OnDone; guarded by mutex_
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_UNARY_REACTOR_H_
