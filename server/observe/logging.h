#ifndef GDPCACHE_SERVER_OBSERVE_LOGGING_H_
#define GDPCACHE_SERVER_OBSERVE_LOGGING_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gdpcache::observe {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

/// kText: "2026-01-31T12:00:00.123Z info message name=value". kJson: {"time": ..., "level": ..., "message": ...,
/// "name": value}. Either way a message is one line: control characters are escaped.
enum class LogFormat : std::uint8_t { kText, kJson };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};

/// Makes spdlog's default logger write to stderr as told. Once, before other threads log.
void StartLogging(const LogOptions& options);

/// A value that belongs to a message.
struct LogField {
  absl::string_view name;
  std::variant<std::string, std::int64_t> value;
};

bool WouldLog(LogLevel level);
void Log(LogLevel level, absl::string_view message, absl::Span<const LogField> fields);

}  // namespace gdpcache::observe

#endif  // GDPCACHE_SERVER_OBSERVE_LOGGING_H_
