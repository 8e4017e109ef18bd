#ifndef GDPCACHE_CLIENT_COMMAND_HELP_FORMATTER_H_
#define GDPCACHE_CLIENT_COMMAND_HELP_FORMATTER_H_

#include <string>

#include "CLI/CLI.hpp"

namespace gdpcache::command {

/// CLI11's help with lines that fit a terminal.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();

  std::string make_description(const CLI::App* app) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* subcommand) const override;
};

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_HELP_FORMATTER_H_
