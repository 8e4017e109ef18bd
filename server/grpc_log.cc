#include "server/grpc_log.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/version_info.h>

#include <string>

// Later versions of either log through Abseil.
#define GDPCACHE_GRPC_LOGS (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65)
#define GDPCACHE_PROTOBUF_LOGS (GOOGLE_PROTOBUF_VERSION < 4022000)

#if GDPCACHE_GRPC_LOGS
#include <grpc/support/log.h>
#endif
#if GDPCACHE_PROTOBUF_LOGS
#include <google/protobuf/stubs/logging.h>
#endif

#if GDPCACHE_GRPC_LOGS || GDPCACHE_PROTOBUF_LOGS
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/cache/clock.h"
#include "server/observe/log_limiter.h"
#include "server/observe/logging.h"
#endif

namespace gdpcache {

#if GDPCACHE_GRPC_LOGS || GDPCACHE_PROTOBUF_LOGS
namespace {

void Write(observe::LogLevel level, absl::string_view library, absl::string_view message) {
  static observe::LogLimiter& limiter = *new observe::LogLimiter(/*per_second=*/10, /*burst=*/100);
  if (!observe::WouldLog(level)) return;
  const std::optional<std::int64_t> left_out = limiter.Admit(cache::SteadyNow());
  if (!left_out.has_value()) return;
  std::vector<observe::LogField> fields;
  if (*left_out > 0) fields.push_back({"left_out", *left_out});
  observe::Log(level, absl::StrCat(library, ": ", message), fields);
}

}  // namespace
#endif

#if GDPCACHE_GRPC_LOGS
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

void WriteOfGrpc(gpr_log_func_args* line) { Write(LevelOf(line->severity), "gRPC", line->message); }

}  // namespace
#endif

#if GDPCACHE_PROTOBUF_LOGS
namespace {

// Its errors are about messages that are no proper ones: the other end's, too. A fatal one it ends the process with
// afterwards.
void WriteOfProtobuf(google::protobuf::LogLevel level, const char* /*file*/, int /*line*/, const std::string& message) {
  Write(level == google::protobuf::LOGLEVEL_INFO ? observe::LogLevel::kInfo : observe::LogLevel::kWarning, "protobuf",
        message);
}

}  // namespace
#endif

GrpcLog::GrpcLog() {
#if GDPCACHE_GRPC_LOGS
  gpr_set_log_function(WriteOfGrpc);
#endif
#if GDPCACHE_PROTOBUF_LOGS
  google::protobuf::SetLogHandler(WriteOfProtobuf);
#endif
}

// gRPC's threads go on to the end of the process, when the logger is gone.
GrpcLog::~GrpcLog() {
#if GDPCACHE_GRPC_LOGS
  gpr_set_log_function(nullptr);
#endif
#if GDPCACHE_PROTOBUF_LOGS
  google::protobuf::SetLogHandler(nullptr);
#endif
}

}  // namespace gdpcache
