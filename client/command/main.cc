#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "client/command/help_formatter.h"
#include "client/command/subcommand.h"

namespace gdpcache::command {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

/// "gdpcache caches list" for a parser below the main one.
std::string FullName(const CLI::App* parser) {
  return parser->get_parent() == nullptr ? parser->get_name()
                                         : FullName(parser->get_parent()) + " " + parser->get_name();
}

int Main(int argc, char** argv) {
  CLI::App app("Client of gdpcached, the state-cache server for Gated Delta Product models.", "gdpcache");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", "gdpcache " GDPCACHE_VERSION);
  app.require_subcommand(0, 1);  // that there is one is checked below: CLI11 would not name a wrong one
  app.footer(
      "Exit status: 0 success, 1 failed, 2 wrong usage.\n"
      "--help behind a subcommand describes it.");

  std::vector<Subcommand> subcommands;
  for (const auto add : {AddReplay, AddInfo, AddCaches, AddSlots, AddSnapshots, AddHealth, AddTop, AddBench}) {
    for (Subcommand& subcommand : add(&app)) subcommands.push_back(std::move(subcommand));
  }

  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A subcommand");
    for (const Subcommand& subcommand : subcommands) {
      const CLI::App& parser = *subcommand.parser;
      if (!subcommand.run && parser.parsed() && parser.get_subcommands().empty()) {
        throw CLI::RequiredError("A subcommand of '" + FullName(&parser) + "'");
      }
    }
  } catch (const CLI::ParseError& error) {
    // 0 for --help and --version.
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  for (const Subcommand& subcommand : subcommands) {
    // Where a subcommand has subcommands of its own and one was named, that one runs.
    if (!subcommand.parser->parsed() || !subcommand.parser->get_subcommands().empty()) continue;
    absl::Status status = subcommand.run();
    std::cout.flush();
    if (status.ok() && !std::cout) status = absl::DataLossError("the output could not be written");
    if (!status.ok()) {
      std::cerr << FullName(subcommand.parser) << ": " << absl::StatusCodeToString(status.code()) << ": "
                << status.message() << "\n";
      return kFailed;
    }
  }
  return 0;
}

}  // namespace
}  // namespace gdpcache::command

int main(int argc, char** argv) {
  try {
    return gdpcache::command::Main(argc, argv);
  } catch (const std::exception& error) {  // out of memory, from the standard library
    std::fprintf(stderr, "gdpcache: %s\n", error.what());
    return 1;
  }
}
