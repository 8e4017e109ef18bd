#ifndef GDPCACHE_SERVER_OBSERVE_LOG_FORMATTER_H_
#define GDPCACHE_SERVER_OBSERVE_LOG_FORMATTER_H_

#include <spdlog/formatter.h>

#include <memory>

#include "server/observe/logging.h"

namespace gdpcache::observe {

/// Turns a log message into its line; LogFormat says how lines look. A message whose source's file name is (that very)
/// kWithFields is text and, behind it, a JSON object; the source's line is one more than the text's size.
class LogFormatter final : public spdlog::formatter {
 public:
  static const char* const kWithFields;

  explicit LogFormatter(LogFormat format) : format_(format) {}
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override;
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LogFormatter>(format_); }

 private:
  const LogFormat format_;
};

}  // namespace gdpcache::observe

#endif  // GDPCACHE_SERVER_OBSERVE_LOG_FORMATTER_H_
