#include "server/config/help.h"

#include <cstddef>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/config/command_line.h"
#include "server/config/flags.h"

namespace gdpcache::config {
namespace {

constexpr std::size_t kWidth = 80;
constexpr absl::string_view kIndent = "      ";

// `text` in lines of at most kWidth characters, each indented.
void AppendWrapped(std::string& out, absl::string_view text) {
  std::size_t column = 0;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (column > 0 && column + 1 + word.size() > kWidth) {
      out += '\n';
      column = 0;
    }
    if (column == 0) {
      absl::StrAppend(&out, kIndent, word);
      column = kIndent.size() + word.size();
    } else {
      absl::StrAppend(&out, " ", word);
      column += 1 + word.size();
    }
  }
  out += '\n';
}

}  // namespace

std::string HelpText() {
  std::string help =
      "gdpcached owns the recurrent states of Gated Delta Product models and advances\n"
      "them in place, for serving engines that call it over gRPC.\n"
      "\n"
      "Usage: gdpcached [--flag=value ...]\n"
      "\n"
      "Without flags it serves loopback and a Unix socket, on the GPU if there is one.\n"
      "When it serves it prints one line to stdout: ready address=... unix=... backend=...\n"
      "SIGTERM or SIGINT lets running calls finish, then stops; a second one stops at\n"
      "once. SIZE is in bytes, or with KiB, MiB, GiB or TiB; DURATION as in 500ms, 60s, 1h.\n";
  for (const FlagGroup& group : FlagGroups()) {
    absl::StrAppend(&help, "\n", group.title, "\n");
    for (const FlagEntry& entry : group.flags) {
      const absl::CommandLineFlag& flag = *absl::FindCommandLineFlag(entry.name);
      absl::StrAppend(&help, "  ", DisplayName(entry.name), entry.value.empty() ? "" : "=", entry.value, "\n");
      const std::string default_value = flag.DefaultValue();
      AppendWrapped(help,
                    absl::StrCat(flag.Help(), " (default: ", default_value.empty() ? "none" : default_value, ")"));
    }
  }
  absl::StrAppend(&help,
                  "\nOther\n"
                  "  --help\n      Print this and exit.\n"
                  "  --version\n      Print the version and exit.\n"
                  "\n"
                  "Exit status: 0 after a drain, --help or --version; 1 when it could not start or\n"
                  "serve; 2 when a flag or the configuration file is wrong.\n");
  return help;
}

}  // namespace gdpcache::config
