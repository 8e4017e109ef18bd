#include "server/observe/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/observe/log_formatter.h"

namespace gdpcache::observe {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void StartLogging(const LogOptions& options) {
  auto logger = std::make_shared<spdlog::logger>("gdpcached", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<LogFormatter>(options.format));
  logger->set_level(ToSpdlog(options.level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

bool WouldLog(LogLevel level) { return spdlog::should_log(ToSpdlog(level)); }

void Log(LogLevel level, absl::string_view message, absl::Span<const LogField> fields) {
  if (!WouldLog(level)) return;
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const LogField& field : fields) {
    std::visit([&json, &field](const auto& value) { json[std::string(field.name)] = value; }, field.value);
  }
  const std::string payload =
      absl::StrCat(message, json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  // spdlog knows no fields; LogFormatter does.
  spdlog::default_logger_raw()->log(
      spdlog::source_loc{LogFormatter::kWithFields, static_cast<int>(message.size()) + 1, ""}, ToSpdlog(level),
      spdlog::string_view_t(payload.data(), payload.size()));
}

}  // namespace gdpcache::observe
