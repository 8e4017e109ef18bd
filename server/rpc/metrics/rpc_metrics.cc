#include "server/rpc/metrics/rpc_metrics.h"

#include <chrono>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace gdpcache::rpc {
namespace {

using Clock = std::chrono::steady_clock;

prometheus::Labels LabelsOf(std::string_view path) {  // "/package.Service/Method"
  path.remove_prefix(std::min<std::size_t>(1, path.size()));
  const std::size_t slash = std::min(path.find('/'), path.size());
  return {{"rpc_service", std::string(path.substr(0, slash))},
          {"rpc_method", std::string(path.substr(std::min(slash + 1, path.size())))}};
}

}  // namespace

class RpcMetrics::Interceptor final : public grpc::experimental::Interceptor {
 public:
  Interceptor(RpcMetrics& metrics, std::string_view path)
      : metrics_(metrics), labels_(LabelsOf(path)), active_(metrics.active_.Add(labels_)) {
    active_.Increment();
  }
  Interceptor(const Interceptor&) = delete;
  Interceptor& operator=(const Interceptor&) = delete;

  ~Interceptor() override {
    active_.Decrement();
    prometheus::Labels labels = labels_;
    labels.emplace("rpc_grpc_status_code", absl::StrCat(code_));
    const std::chrono::duration<double> seconds = ended_.value_or(Clock::now()) - started_;
    metrics_.durations_
        .Add(labels, prometheus::Histogram::BucketBoundaries{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3,
                                                             20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10})
        .Observe(seconds.count());
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = methods->GetSendStatus().error_code();
      ended_ = Clock::now();
    }
    methods->Proceed();
  }

 private:
  RpcMetrics& metrics_;
  const prometheus::Labels labels_;
  prometheus::Gauge& active_;
  const Clock::time_point started_ = Clock::now();
  std::optional<Clock::time_point> ended_;
  int code_ = grpc::StatusCode::CANCELLED;
};

class RpcMetrics::Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(RpcMetrics& metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new Interceptor(metrics_, info->method());  // gRPC deletes it with the RPC
  }

 private:
  RpcMetrics& metrics_;
};

RpcMetrics::RpcMetrics(prometheus::Registry& registry)
    : durations_(prometheus::BuildHistogram()
                     .Name("rpc_server_duration_seconds")
                     .Help("RPCs by outcome and the time from their arrival to their status.")
                     .Register(registry)),
      active_(prometheus::BuildGauge()
                  .Name("rpc_server_active_requests")
                  .Help("RPCs that have arrived and not ended.")
                  .Register(registry)) {}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> RpcMetrics::MakeInterceptorFactory() {
  return std::make_unique<Factory>(*this);
}

}  // namespace gdpcache::rpc
