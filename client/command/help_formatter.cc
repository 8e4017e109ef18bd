#include "client/command/help_formatter.h"

#include <sstream>

namespace gdpcache::command {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kNameWidth = 34;

/// `text` in lines of at most `width` characters; CLI11 indents what follows a newline.
std::string Wrap(const std::string& text, std::size_t width) {
  std::istringstream words(text);
  std::string result;
  std::size_t column = 0;
  for (std::string word; words >> word;) {
    if (column > 0) {
      const bool fits = column + 1 + word.size() <= width;
      result += fits ? ' ' : '\n';
      column = fits ? column + 1 : 0;
    }
    result += word;
    column += word.size();
  }
  return result;
}

}  // namespace

HelpFormatter::HelpFormatter() { column_width(kNameWidth); }

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return Wrap(app->get_description(), kWidth) + "\n";
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return Wrap(option->get_description(), kWidth - kNameWidth);
}

std::string HelpFormatter::make_subcommand(const CLI::App* subcommand) const {
  std::stringstream out;
  CLI::detail::format_help(out, subcommand->get_name(), Wrap(subcommand->get_description(), kWidth - kNameWidth),
                           kNameWidth);
  return out.str();
}

}  // namespace gdpcache::command
