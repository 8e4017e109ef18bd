#include "server/rpc/metrics/rpc_metrics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"

namespace gdpcache::rpc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kCodes = grpc::StatusCode::UNAUTHENTICATED + 1;  // the last of gRPC's
constexpr char kOther[] = "/other/other";                              // of all methods that there are not
constexpr double kMicrosecond = 1e-6;                                  // in seconds

std::pair<std::string, std::string> Split(std::string_view path) {
  path.remove_prefix(std::min<std::size_t>(1, path.size()));
  const std::size_t slash = std::min(path.find('/'), path.size());
  return {std::string(path.substr(0, slash)), std::string(path.substr(std::min(slash + 1, path.size())))};
}

/// Whether the server has such a method: clients may name whatever they like. The program has the descriptors of all
/// services for reflection, but for gRPC's own health service.
bool Exists(const std::pair<std::string, std::string>& name) {
  if (name.first == "grpc.health.v1.Health") return name.second == "Check" || name.second == "Watch";
  const google::protobuf::DescriptorPool& known = *google::protobuf::DescriptorPool::generated_pool();
  return known.FindMethodByName(absl::StrCat(name.first, ".", name.second)) != nullptr;
}

v1::RpcOutcomes Encode(std::size_t code, const prometheus::ClientMetric::Histogram& durations) {
  v1::RpcOutcomes outcomes;
  outcomes.set_code(static_cast<std::int32_t>(code));
  outcomes.set_count(static_cast<std::int64_t>(durations.sample_count));
  outcomes.set_duration_us(std::llround(durations.sample_sum / kMicrosecond));
  std::uint64_t before = 0;
  for (const prometheus::ClientMetric::Bucket& bucket : durations.bucket) {
    v1::DurationBucket& out = *outcomes.add_buckets();
    if (std::isfinite(bucket.upper_bound)) out.set_limit_us(std::llround(bucket.upper_bound / kMicrosecond));
    out.set_count(static_cast<std::int64_t>(bucket.cumulative_count - std::exchange(before, bucket.cumulative_count)));
  }
  return outcomes;
}

}  // namespace

class RpcMetrics::Method {
 public:
  Method(RpcMetrics& metrics, std::pair<std::string, std::string> name)
      : durations_(metrics.durations_), name_(std::move(name)), active_(metrics.active_.Add(Labels())) {}

  prometheus::Gauge& active() { return active_; }

  prometheus::Histogram& durations(int code) {
    const auto index = static_cast<std::size_t>(std::clamp<int>(code, 0, kCodes - 1));
    if (prometheus::Histogram* const known = by_code_[index]; known != nullptr) return *known;
    prometheus::Labels labels = Labels();
    labels.emplace("rpc_grpc_status_code", absl::StrCat(index));
    prometheus::Histogram& made = durations_.Add(  // the same one for whoever asks at the same time
        labels, prometheus::Histogram::BucketBoundaries{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3,
                                                        50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10});
    by_code_[index] = &made;
    return made;
  }

  v1::RpcStats Read() const {
    v1::RpcStats stats;
    stats.set_service(name_.first);
    stats.set_method(name_.second);
    stats.set_active(std::llround(active_.Value()));
    for (std::size_t code = 0; code < kCodes; ++code) {
      const prometheus::Histogram* const durations = by_code_[code];
      if (durations != nullptr) *stats.add_outcomes() = Encode(code, durations->Collect().histogram);
    }
    return stats;
  }

 private:
  prometheus::Labels Labels() const { return {{"rpc_service", name_.first}, {"rpc_method", name_.second}}; }

  prometheus::Family<prometheus::Histogram>& durations_;
  const std::pair<std::string, std::string> name_;  // service, method
  prometheus::Gauge& active_;
  std::array<std::atomic<prometheus::Histogram*>, kCodes> by_code_ = {};
};

/// Its mutex is taken by whatever gRPC calls, so that the order gRPC guarantees is visible to ThreadSanitizer, too.
class RpcMetrics::Interceptor final : public grpc::experimental::Interceptor {
 public:
  explicit Interceptor(Method& method) : method_(method) {
    const std::lock_guard lock(mutex_);
    method_.active().Increment();
  }
  Interceptor(const Interceptor&) = delete;
  Interceptor& operator=(const Interceptor&) = delete;

  ~Interceptor() override {
    const std::lock_guard lock(mutex_);
    method_.active().Decrement();
    const std::chrono::duration<double> seconds = ended_.value_or(Clock::now()) - started_;
    method_.durations(code_).Observe(seconds.count());
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      const std::lock_guard lock(mutex_);
      code_ = methods->GetSendStatus().error_code();
      ended_ = Clock::now();
    }
    methods->Proceed();
  }

 private:
  std::mutex mutex_;
  Method& method_;
  const Clock::time_point started_ = Clock::now();
  std::optional<Clock::time_point> ended_;
  int code_ = grpc::StatusCode::CANCELLED;
};

class RpcMetrics::Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(RpcMetrics& metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new Interceptor(metrics_.MethodOf(info->method()));  // gRPC deletes it with the RPC
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

RpcMetrics::~RpcMetrics() = default;

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> RpcMetrics::MakeInterceptorFactory() {
  return std::make_unique<Factory>(*this);
}

RpcMetrics::Method& RpcMetrics::MethodOf(std::string_view path) {
  {
    const std::shared_lock lock(mutex_);
    if (const auto known = methods_.find(path); known != methods_.end()) return *known->second;
  }
  std::pair<std::string, std::string> name = Split(path);
  const bool exists = Exists(name);
  const std::unique_lock lock(mutex_);
  std::unique_ptr<Method>& method = methods_[exists ? std::string(path) : kOther];
  if (method == nullptr) method = std::make_unique<Method>(*this, exists ? std::move(name) : Split(kOther));
  return *method;
}

google::protobuf::RepeatedPtrField<v1::RpcStats> RpcMetrics::Read() const {
  google::protobuf::RepeatedPtrField<v1::RpcStats> stats;
  const std::shared_lock lock(mutex_);
  for (const auto& [path, method] : methods_) *stats.Add() = method->Read();
  return stats;
}

}  // namespace gdpcache::rpc
