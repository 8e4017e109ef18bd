#include "server/grpc_log.h"

#include <grpcpp/version_info.h>

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65
#include <grpc/support/log.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/observe/log_limiter.h"
#include "server/observe/logging.h"
#endif

namespace gdpcache {

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65
namespace {

observe::LogLevel LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return observe::LogLevel::kDebug;
    case GPR_LOG_SEVERITY_INFO:
      return observe::LogLevel::kInfo;
    case GPR_LOG_SEVERITY_ERROR:
      return observe::LogLevel::kWarning;  // most of them are the other end's
  }
  return observe::LogLevel::kWarning;
}

void Write(gpr_log_func_args* line) {
  static observe::LogLimiter& limiter = *new observe::LogLimiter(/*per_second=*/10, /*burst=*/100);
  const observe::LogLevel level = LevelOf(line->severity);
  if (!observe::WouldLog(level)) return;
  const std::optional<std::int64_t> left_out = limiter.Admit(absl::Now());
  if (!left_out.has_value()) return;
  std::vector<observe::LogField> fields;
  if (*left_out > 0) fields.push_back({"left_out", *left_out});
  observe::Log(level, absl::StrCat("gRPC: ", line->message), fields);
}

}  // namespace

GrpcLog::GrpcLog() { gpr_set_log_function(Write); }
// Its threads go on to the end of the process, when the logger is gone.
GrpcLog::~GrpcLog() { gpr_set_log_function(nullptr); }
#else
GrpcLog::GrpcLog() = default;
GrpcLog::~GrpcLog() = default;
#endif

}  // namespace gdpcache
