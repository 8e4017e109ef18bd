#include "server/observe/log_formatter.h"

#include <spdlog/details/log_msg.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

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

}  // namespace
}  // namespace gdpcache::observe
