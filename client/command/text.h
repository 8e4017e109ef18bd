#ifndef GDPCACHE_CLIENT_COMMAND_TEXT_H_
#define GDPCACHE_CLIENT_COMMAND_TEXT_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "nlohmann/json.hpp"

/// Output for people and for programs.
namespace gdpcache::command {

/// Rows of text in aligned columns, the first row being the heading.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) { rows_.push_back(std::move(heading)); }

  /// As many cells as the heading has, of any content.
  void Add(std::vector<std::string> row);

  void Print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// What a server or a person wrote, fit for a terminal: no control characters, and as wide as it has bytes.
std::string Printable(std::string text);

/// "12 B", "3.5 MiB".
std::string FormatBytes(std::int64_t bytes);

/// "[2, 64, 64]".
std::string FormatShape(absl::Span<const std::int64_t> shape);

/// Indented, and whatever strings it holds.
void PrintJson(const nlohmann::json& value, std::ostream& out);

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_TEXT_H_
