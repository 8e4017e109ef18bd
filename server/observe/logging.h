#ifndef GDPCACHE_SERVER_OBSERVE_LOGGING_H_
#define GDPCACHE_SERVER_OBSERVE_LOGGING_H_

#include <cstdint>

namespace gdpcache::observe {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

/// kText: "2026-01-31T12:00:00.123Z info message". kJson: {"time": ..., "level": ..., "message": ...}. Either way a
/// message is one line: control characters are escaped.
enum class LogFormat : std::uint8_t { kText, kJson };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};

/// Makes spdlog's default logger write to stderr as told. Once, before other threads log.
void StartLogging(const LogOptions& options);

}  // namespace gdpcache::observe

#endif  // GDPCACHE_SERVER_OBSERVE_LOGGING_H_
