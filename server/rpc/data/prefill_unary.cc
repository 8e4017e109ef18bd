#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "server/rpc/call_context.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/prefill_codec.h"
#include "server/rpc/rpc_in_session.h"
#include "server/rpc/shared_memory_codec.h"
#include "server/rpc/unary_reactor.h"

namespace gdpcache::rpc {
namespace {

class PrefillReactor final : public UnaryReactor {
 public:
  PrefillReactor(const DataPlane& plane, grpc::CallbackServerContext& context, const v1::PrefillRequest& request,
                 v1::PrefillResponse& response)
      : request_(request),
        response_(response),
        metrics_(plane.metrics),
        rpc_(plane.log, "Prefill", context),
        in_session_(context) {
    rpc_.SetRequestId(request.request_id());
  }

  /// Ends with Finish, maybe on another thread and before it returns.
  void Begin(const DataPlane& plane, const grpc::CallbackServerContext& context) {
    absl::StatusOr<engine::CallContext> caller = FindCaller(plane, context, request_.session());
    if (!caller.ok()) return Fail(caller.status());
    caller_ = *std::move(caller);
    rpc_.SetSession(*caller_.session);
    if (absl::Status status = in_session_.Begin(*caller_.session); !status.ok()) return Fail(status);
    auto decoded = DecodePrefill(request_, engine::TensorTransport::kInline);
    if (!decoded.ok()) return Fail(decoded.status());
    if (absl::Status status = FindSharedMemory(request_, caller_.session->regions(), *decoded); !status.ok()) {
      return Fail(status);
    }
    auto call = plane.engine.Prefill(caller_, *decoded,
                                     [this](absl::StatusOr<engine::PrefillResult> result) { Done(std::move(result)); });
    if (!call.ok()) return Fail(call.status());
    const std::shared_ptr<engine::UnaryPrefill> prefill = *std::move(call);
    const engine::PrefillPlan& plan = prefill->plan();
    DescribeResults(request_, plan, response_);
    const engine::OutputPlaces& places = decoded->outputs;
    DescribePlaces(request_.outputs(), response_);
    const auto allocate = [](const engine::RegionPlace& place, std::int64_t bytes,
                             v1::Tensor* (v1::PrefillResponse::*tensor)(), v1::PrefillResponse& response) -> void* {
      if (bytes == 0 || place.region != nullptr) return nullptr;
      std::string& data = *(response.*tensor)()->mutable_inline_();
      data.resize(static_cast<std::size_t>(bytes));
      return data.data();
    };
    prefill->SetOutputs(
        {.h = allocate(places.h, plan.h_bytes, &v1::PrefillResponse::mutable_h, response_),
         .v_new = allocate(places.v_new, plan.v_new_bytes, &v1::PrefillResponse::mutable_v_new, response_),
         .final_state = allocate(places.final_state, plan.final_state_bytes, &v1::PrefillResponse::mutable_final_state,
                                 response_)});
    // gRPC calls neither OnCancel nor OnDone before the method that handles the call has returned.
    {
      const std::lock_guard lock(mutex());
      call_ = prefill;
    }
    prefill->Start();
  }

 private:
  void Cancelled() override {
    std::shared_ptr<engine::Call> call;
    {
      const std::lock_guard lock(mutex());
      call = call_;
    }
    if (call != nullptr) call->Cancel(ClientGone());
  }

  /// From here on the end of the session must not cancel it.
  void Ended() override { in_session_.End(); }

  void Done(absl::StatusOr<engine::PrefillResult> result) {
    if (!result.ok()) return Fail(result.status());
    EncodeResult(*result, response_);
    {
      const std::lock_guard lock(mutex());
      metrics_.Observe(call_->plan(), result->timing);
    }
    in_session_.AnswerWaits();
    Answer(rpc_.End(result->timing));
  }

  void Fail(const absl::Status& status) {
    response_.Clear();
    Answer(rpc_.End(status));
  }

  const v1::PrefillRequest& request_;
  v1::PrefillResponse& response_;
  PrefillMetrics& metrics_;
  engine::CallContext caller_;
  LoggedRpc rpc_;
  RpcInSession in_session_;

  std::shared_ptr<engine::UnaryPrefill> call_;  // the mutex guards it
};

}  // namespace

grpc::ServerUnaryReactor* HandlePrefill(const DataPlane& plane, grpc::CallbackServerContext* context,
                                        const v1::PrefillRequest* request, v1::PrefillResponse* response) {
  auto* const reactor = new PrefillReactor(plane, *context, *request, *response);
  reactor->Begin(plane, *context);
  return reactor;
}

}  // namespace gdpcache::rpc
