#include "server/rpc/call_log.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/cache/clock.h"
#include "server/rpc/status.h"

namespace gdpcache::rpc {
namespace {

constexpr char kRequestIdKey[] = "x-request-id";

/// Unlike any other of this server, and most likely of others.
std::string MakeRequestId() {
  static std::atomic<std::int64_t> next = absl::GetCurrentTimeNanos();
  return absl::StrCat(absl::Hex(next.fetch_add(1, std::memory_order_relaxed), absl::kZeroPad16));
}

/// An id of any bytes as metadata may have it: gRPC ends the process over others.
std::string AsMetadata(const std::string& id) {
  const bool printable = std::all_of(id.begin(), id.end(), [](unsigned char c) { return c >= 0x20 && c < 0x7F; });
  return printable ? id : absl::CHexEscape(id);
}

/// Errors that are the server's own.
bool IsServersFault(absl::StatusCode code) {
  return code == absl::StatusCode::kInternal || code == absl::StatusCode::kDataLoss ||
         code == absl::StatusCode::kUnknown;
}

}  // namespace

void LoggedRpc::SetSession(const cache::Session& session) {
  session_ = session.key();
  tenant_ = session.tenant();
  client_ = session.client_name();
  cache_ = session.cache()->spec().name;
}

grpc::Status LoggedRpc::End(const absl::Status& status) {
  if (status.ok()) {
    EndWell(nullptr);
    return grpc::Status::OK;
  }
  log_.refusals_.Count(status);
  const std::string request_id = RequestId();
  context_.AddTrailingMetadata(kRequestIdKey, AsMetadata(request_id));
  LogLine(IsServersFault(status.code()) ? observe::LogLevel::kWarning : observe::LogLevel::kInfo, log_.failed_,
          absl::StrCat(method_, " failed: ", status.ToString(absl::StatusToStringMode::kWithNoExtraData)), request_id,
          nullptr);
  return ToGrpcStatus(status);
}

grpc::Status LoggedRpc::End(const engine::PrefillTiming& timing) {
  EndWell(&timing);
  return grpc::Status::OK;
}

void LoggedRpc::EndWell(const engine::PrefillTiming* timing) {
  if (log_.slow_ == absl::ZeroDuration() || cache::SteadyNow() - arrived_ < log_.slow_) return;
  LogLine(observe::LogLevel::kWarning, log_.slow_lines_, absl::StrCat(method_, " was slow"), RequestId(), timing);
}

std::string LoggedRpc::RequestId() const {
  if (!request_id_.empty()) return request_id_;
  const auto& metadata = context_.client_metadata();
  if (const auto given = metadata.find(kRequestIdKey); given != metadata.end()) {
    const absl::string_view id(given->second.data(), given->second.size());
    const bool printable = std::all_of(id.begin(), id.end(), [](unsigned char c) { return c > 0x20 && c < 0x7F; });
    if (!id.empty() && id.size() <= kMaxNameBytes && printable) return std::string(id);
  }
  return MakeRequestId();
}

void LoggedRpc::LogLine(observe::LogLevel level, observe::LogLimiter& limiter, const std::string& message,
                        const std::string& request_id, const engine::PrefillTiming* timing) const {
  if (!observe::WouldLog(level)) return;
  const absl::Time now = cache::SteadyNow();
  const std::optional<std::int64_t> left_out = limiter.Admit(now);
  if (!left_out.has_value()) return;
  std::vector<observe::LogField> fields = {{"method", std::string(method_)}, {"request", request_id}};
  if (session_.has_value()) {
    fields.push_back({"session", static_cast<std::int64_t>(*session_)});
    fields.push_back({"tenant", tenant_});
    fields.push_back({"client", client_});
  }
  if (!cache_.empty()) fields.push_back({"cache", cache_});
  fields.push_back({"peer", context_.peer()});
  fields.push_back({"duration_us", absl::ToInt64Microseconds(now - arrived_)});
  if (timing != nullptr) {
    fields.push_back({"queue_us", timing->queue_us});
    fields.push_back({"stage_in_us", timing->stage_in_us});
    fields.push_back({"compute_us", timing->compute_us});
    fields.push_back({"stage_out_us", timing->stage_out_us});
  }
  if (*left_out > 0) fields.push_back({"left_out", *left_out});
  observe::Log(level, message, fields);
}

}  // namespace gdpcache::rpc
