#include "server/observe/log_formatter.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gdpcache::observe {
namespace {

using Fields = nlohmann::ordered_json;

// What JSON lets stand as it is, and terminals obey or take for the end of a line: DEL, the control characters U+0080
// to U+009F, and the separators and directions U+2028 to U+202E and U+2066 to U+2069. In `json`, which is valid UTF-8.
std::string EscapeRest(const std::string& json) {
  std::string escaped;
  escaped.reserve(json.size());
  for (std::size_t n = 0; n < json.size(); ++n) {
    const auto byte = [&json, n](std::size_t ahead) {
      return n + ahead < json.size() ? static_cast<unsigned char>(json[n + ahead]) : 0;
    };
    const int third = byte(2);
    if (byte(0) == 0x7F) {
      escaped += "\\u007f";
    } else if (byte(0) == 0xC2 && byte(1) < 0xA0) {
      absl::StrAppend(&escaped, "\\u00", absl::Hex(byte(1)));
      n += 1;
    } else if (byte(0) == 0xE2 && ((byte(1) == 0x80 && third >= 0xA8 && third <= 0xAE) ||
                                   (byte(1) == 0x81 && third >= 0xA6 && third <= 0xA9))) {
      absl::StrAppend(&escaped, "\\u20", absl::Hex((byte(1) == 0x80 ? 0 : 0x40) + third - 0x80, absl::kZeroPad2));
      n += 2;
    } else {
      escaped += json[n];
    }
  }
  return escaped;
}

std::string Dump(const Fields& value) {
  return EscapeRest(value.dump(-1, ' ', false, Fields::error_handler_t::replace));
}

// As JSON would have it, without the quotes: readable, one line, valid UTF-8.
std::string Escape(absl::string_view text) {
  const std::string quoted = Dump(std::string(text));
  return quoted.substr(1, quoted.size() - 2);
}

// name=value, in quotes unless it is a plain word.
void AppendAsText(const Fields& fields, std::string& line) {
  for (const auto& [name, value] : fields.items()) {
    const auto is_plain = [](const std::string& text) {
      return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
        return c > 0x20 && c < 0x7F && c != '"' && c != '\\' && c != '=';
      });
    };
    const bool plain = value.is_string() && is_plain(value.get_ref<const std::string&>());
    absl::StrAppend(&line, " ", name, "=", plain ? value.get_ref<const std::string&>() : Dump(value));
  }
}

// , "name": value
void AppendAsJson(const Fields& fields, std::string& line) {
  for (const auto& [name, value] : fields.items()) {
    absl::StrAppend(&line, ", ", Dump(name), ": ", Dump(value));
  }
}

}  // namespace

const char* const LogFormatter::kWithFields = "with fields";

void LogFormatter::format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) {
  const std::string time =
      absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::FromChrono(message.time), absl::UTCTimeZone());
  const spdlog::string_view_t level_name = spdlog::level::to_string_view(message.level);
  const absl::string_view level(level_name.data(), level_name.size());
  absl::string_view payload(message.payload.data(), message.payload.size());
  Fields fields = Fields::object();
  if (message.source.filename == kWithFields) {
    const auto size = static_cast<std::size_t>(message.source.line - 1);
    fields = Fields::parse(payload.substr(size), nullptr, /*allow_exceptions=*/false);
    payload = payload.substr(0, size);
  }
  std::string text;
  switch (format_) {
    case LogFormat::kText: {
      // Quotes and backslashes may stand as they are unless something else needs escaping.
      const std::string escaped = Escape(payload);
      const bool is_plain =
          std::all_of(payload.begin(), payload.end(), [](unsigned char c) { return c >= 0x20 && c < 0x7F; });
      text = absl::StrCat(time, " ", level, " ", is_plain ? payload : absl::string_view(escaped));
      AppendAsText(fields, text);
      text += '\n';
      break;
    }
    case LogFormat::kJson:
      text =
          absl::StrCat(R"({"time": ")", time, R"(", "level": ")", level, R"(", "message": ")", Escape(payload), "\"");
      AppendAsJson(fields, text);
      text += "}\n";
      break;
  }
  line.append(text.data(), text.data() + text.size());
}

}  // namespace gdpcache::observe
