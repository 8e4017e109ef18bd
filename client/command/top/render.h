#ifndef GDPCACHE_CLIENT_COMMAND_TOP_RENDER_H_
#define GDPCACHE_CLIENT_COMMAND_TOP_RENDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/command/top/model.h"

/// The view as lines of text: no terminal is involved.
namespace gdpcache::command::top {

enum class Style : std::uint8_t { kPlain, kTitle, kHeading, kLabel, kGood, kWarning, kBad, kDim };

/// Text of one style: printable ASCII.
struct Run {
  std::string text;
  Style style = Style::kPlain;
};
using Line = std::vector<Run>;

struct Layout {
  std::size_t columns = 80;  // no line is longer
  std::size_t rows = 0;      // at most so many lines; 0: as many as it takes
  absl::TimeZone zone = absl::LocalTimeZone();
  std::string footer;  // the last line, where rows are counted
};

std::vector<Line> Render(const View& view, const Layout& layout);

std::string PlainText(absl::Span<const Line> lines);

}  // namespace gdpcache::command::top

#endif  // GDPCACHE_CLIENT_COMMAND_TOP_RENDER_H_
