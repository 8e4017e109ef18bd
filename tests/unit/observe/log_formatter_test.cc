#include "server/observe/log_formatter.h"

#include <spdlog/details/log_msg.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdpcache::observe {
namespace {

std::string Line(LogFormat format, const std::string& message) {
  const spdlog::log_clock::time_point time{std::chrono::milliseconds(1'767'268'800'042)};
  spdlog::memory_buf_t line;
  LogFormatter(format).format(spdlog::details::log_msg(time, {}, "", spdlog::level::warn, message), line);
  return std::string(line.data(), line.size());
}

TEST(LogFormatterTest, TextIsReadable) {
  EXPECT_EQ(Line(LogFormat::kText, R"(cache "a\b" is 5 % full)"),
            "2026-01-01T12:00:00.042Z warning cache \"a\\b\" is 5 % full\n");
}

TEST(LogFormatterTest, JsonIsOneObject) {
  const std::string line = Line(LogFormat::kJson, "a \"quoted\" word");
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const nlohmann::json object = nlohmann::json::parse(line);
  EXPECT_EQ(object["time"], "2026-01-01T12:00:00.042Z");
  EXPECT_EQ(object["level"], "warning");
  EXPECT_EQ(object["message"], "a \"quoted\" word");
}

TEST(LogFormatterTest, NothingSomebodySentBreaksTheLine) {
  const std::string hostile("a\nb\0c\x1b[31m\xff", 11);
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string line = Line(format, hostile);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    EXPECT_EQ(line.find('\0'), std::string::npos);
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
  }
  EXPECT_TRUE(nlohmann::json::accept(Line(LogFormat::kJson, hostile)));
}

TEST(LogFormatterTest, NothingSomebodySentMovesTheCursor) {
  const std::string hostile = "\x7f|\u0080|\u009b31m|\u2028|\u202e|\u2066|\u2069";
  const std::string harmless = "\u00a0|\u00e9|\u2027|\u202f|\u2065|\u206a|\U0001f600";
  const std::string escaped = R"(\u007f|\u0080|\u009b31m|\u2028|\u202e|\u2066|\u2069)";
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    EXPECT_THAT(Line(format, hostile), ::testing::HasSubstr(escaped));
    EXPECT_THAT(Line(format, harmless), ::testing::HasSubstr(harmless));
  }
  EXPECT_EQ(nlohmann::json::parse(Line(LogFormat::kJson, hostile))["message"], hostile);
}

/// What observe::Log writes.
std::string LineOf(LogFormat format, const std::string& message, const std::vector<LogField>& fields) {
  std::ostringstream lines;
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  auto logger = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_st>(lines));
  logger->set_formatter(std::make_unique<LogFormatter>(format));
  spdlog::set_default_logger(logger);
  Log(LogLevel::kInfo, message, fields);
  spdlog::set_default_logger(before);
  return lines.str();
}

TEST(LogFormatterTest, FieldsFollowTheMessage) {
  const std::vector<LogField> fields = {{"cache", "a model"}, {"request", "r-1"}, {"duration_us", 12}, {"peer", ""}};
  EXPECT_THAT(LineOf(LogFormat::kText, "Prefill failed", fields),
              ::testing::EndsWith(" info Prefill failed cache=\"a model\" request=r-1 duration_us=12 peer=\"\"\n"));
  const std::string line = LineOf(LogFormat::kJson, "Prefill failed", fields);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const nlohmann::json object = nlohmann::json::parse(line);
  EXPECT_EQ(object["message"], "Prefill failed");
  EXPECT_EQ(object["cache"], "a model");
  EXPECT_EQ(object["duration_us"], 12);
}

TEST(LogFormatterTest, NothingSomebodySentBecomesAFieldOrALine) {
  const std::string hostile = "x\" level=critical\n{\"level\": \"critical\"}\xff";
  const std::vector<LogField> fields = {{"client", hostile}};
  for (const std::string& message : {std::string("told"), hostile}) {
    const std::string text = LineOf(LogFormat::kText, message, fields);
    EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
    const std::string line = LineOf(LogFormat::kJson, message, fields);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    EXPECT_EQ(nlohmann::json::parse(line)["level"], "info");
  }
  EXPECT_THAT(LineOf(LogFormat::kText, "told", fields), ::testing::HasSubstr(R"(client="x\" level=critical\n)"));
}

}  // namespace
}  // namespace gdpcache::observe
