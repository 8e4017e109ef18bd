#ifndef GDPCACHE_SERVER_CONFIG_COMMAND_LINE_H_
#define GDPCACHE_SERVER_CONFIG_COMMAND_LINE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gdpcache::config {

/// A command line taken apart; no value has been looked at.
struct Arguments {
  std::map<std::string, std::string> values;  // by the flag's name in Abseil; repeated lists are joined by commas
  bool help = false;
  bool version = false;
  std::vector<std::string> errors;
};

/// Understands --name=value, --name value, --switch, --noswitch; dashes and underscores in names are the same.
Arguments ReadArguments(absl::Span<const char* const> arguments);

/// The name as people write it: with dashes.
std::string DisplayName(absl::string_view flag);

/// Sets an Abseil flag. Else appends an error that says what `source` ("--threads", "threads in FILE") must be.
void SetFlag(absl::string_view name, absl::string_view value, absl::string_view source,
             std::vector<std::string>& errors);

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_COMMAND_LINE_H_
