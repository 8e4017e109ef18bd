#ifndef GDPCACHE_SERVER_RPC_RPC_IN_SESSION_H_
#define GDPCACHE_SERVER_RPC_RPC_IN_SESSION_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "server/cache/session.h"

namespace gdpcache::rpc {

/// Keeps an RPC among its session's running calls until its answer has left, not only until the engine is done with
/// it: results hold staging memory and the cache for as long as their client does not read them. A drain waits for
/// them, and they are cut off when the session ends. Thread-safe.
class RpcInSession {
 public:
  /// `context` must outlive End.
  explicit RpcInSession(grpc::CallbackServerContext& context) : state_(std::make_shared<State>(&context)) {}
  RpcInSession(const RpcInSession&) = delete;
  RpcInSession& operator=(const RpcInSession&) = delete;
  ~RpcInSession() { End(); }

  /// Before the engine's call starts. NOT_FOUND if the session has ended.
  absl::Status Begin(cache::Session& session);

  /// The engine's call is over and its results wait for the client: from now on the end of the session cancels the RPC,
  /// which it does at once if the session has ended. Before, it is the call that the session cancels.
  void AnswerWaits();

  /// Nothing of the session is needed any more.
  void End();

 private:
  struct State {
    explicit State(grpc::CallbackServerContext* the_context) : context(the_context) {}

    std::mutex mutex;                      // guards what follows
    grpc::CallbackServerContext* context;  // nullptr from End on
    bool answer_waits = false;
    bool session_ended = false;
  };

  static void CancelLocked(State& state);

  const std::shared_ptr<State> state_;
  cache::Session::Call call_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_RPC_IN_SESSION_H_
