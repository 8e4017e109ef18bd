#include "server/config/watermarks.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gdpcache::config {

bool AbslParseFlag(absl::string_view text, Watermarks* watermarks, std::string* /*error*/) {
  if (text.find(':') == absl::string_view::npos) return false;
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  return absl::SimpleAtoi(parts.first, &watermarks->high) && absl::SimpleAtoi(parts.second, &watermarks->low) &&
         watermarks->low >= 0 && watermarks->low <= watermarks->high && watermarks->high >= 1 &&
         watermarks->high <= 100;
}

std::string AbslUnparseFlag(const Watermarks& watermarks) { return absl::StrCat(watermarks.high, ":", watermarks.low); }

}  // namespace gdpcache::config
