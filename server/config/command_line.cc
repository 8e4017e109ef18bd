#include "server/config/command_line.h"

#include <cstdint>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "server/config/flags.h"

namespace gdpcache::config {
namespace {

// Null for anything that is no flag of the server.
absl::CommandLineFlag* FindFlag(absl::string_view name) {
  for (const FlagGroup& group : FlagGroups()) {
    for (const FlagEntry& entry : group.flags) {
      if (entry.name == name) return absl::FindCommandLineFlag(name);
    }
  }
  return nullptr;
}

bool IsSwitch(const absl::CommandLineFlag& flag) { return flag.IsOfType<bool>(); }

std::string Expectation(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<bool>()) return "true or false";
  if (flag.IsOfType<std::int64_t>()) return "a whole number";
  if (flag.IsOfType<ByteSize>()) return "a number of bytes, or a whole number with KiB, MiB, GiB or TiB";
  if (flag.IsOfType<AutoByteSize>()) return "auto, a number of bytes, or a whole number with KiB, MiB, GiB or TiB";
  if (flag.IsOfType<Watermarks>()) return "HIGH:LOW in percent, such as 90:80";
  if (flag.IsOfType<absl::Duration>()) return "a duration such as 500ms, 60s or 1h";
  for (const FlagGroup& group : FlagGroups()) {
    for (const FlagEntry& entry : group.flags) {
      if (entry.name == flag.Name()) return absl::StrReplaceAll(entry.value, {{"|", " or "}});
    }
  }
  return "something else";
}

}  // namespace

std::string DisplayName(absl::string_view flag) { return absl::StrCat("--", absl::StrReplaceAll(flag, {{"_", "-"}})); }

Arguments ReadArguments(absl::Span<const char* const> arguments) {
  Arguments result;
  for (std::size_t n = 0; n < arguments.size(); ++n) {
    const absl::string_view argument = arguments[n];
    if (argument == "--help" || argument == "-h") {
      result.help = true;
      continue;
    }
    if (argument == "--version") {
      result.version = true;
      continue;
    }
    absl::string_view rest = argument;
    if (!absl::ConsumePrefix(&rest, "--") || rest.empty()) {
      result.errors.push_back(absl::StrCat("'", argument, "' is not a flag"));
      continue;
    }
    const std::vector<std::string> parts = absl::StrSplit(rest, absl::MaxSplits('=', 1));
    std::string name = absl::StrReplaceAll(parts[0], {{"-", "_"}});
    const absl::CommandLineFlag* flag = FindFlag(name);
    std::string value;
    if (flag == nullptr && parts.size() == 1 && absl::StartsWith(name, "no")) {
      flag = FindFlag(name.substr(2));
      if (flag != nullptr && !IsSwitch(*flag)) flag = nullptr;
      name = name.substr(2);
      value = "false";
    } else if (flag != nullptr && parts.size() == 2) {
      value = parts[1];
    } else if (flag != nullptr && IsSwitch(*flag)) {
      value = "true";
    } else if (flag != nullptr) {
      if (n + 1 == arguments.size()) {
        result.errors.push_back(absl::StrCat(DisplayName(name), " needs a value"));
        continue;
      }
      value = arguments[++n];
    }
    if (flag == nullptr) {
      result.errors.push_back(absl::StrCat("there is no flag '--", parts[0], "'"));
      continue;
    }
    const auto [entry, is_new] = result.values.try_emplace(name, value);
    if (is_new) continue;
    if (flag->IsOfType<std::vector<std::string>>()) {
      absl::StrAppend(&entry->second, ",", value);
    } else {
      entry->second = value;
    }
  }
  return result;
}

void SetFlag(absl::string_view name, absl::string_view value, absl::string_view source,
             std::vector<std::string>& errors) {
  absl::CommandLineFlag* flag = FindFlag(name);
  std::string ignored;
  if (!flag->ParseFrom(value, &ignored)) {
    errors.push_back(absl::StrCat(source, " is '", value, "'; it must be ", Expectation(*flag)));
  }
}

}  // namespace gdpcache::config
