#ifndef GDPCACHE_SERVER_CONFIG_WATERMARKS_H_
#define GDPCACHE_SERVER_CONFIG_WATERMARKS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gdpcache::config {

/// How full a tier of snapshots gets before room is made, and until when it is: percent of its size, "90:80".
struct Watermarks {
  std::int64_t high = 0;
  std::int64_t low = 0;
};

/// Abseil's flag interface. False, with no more said, unless 0 <= low <= high and 1 <= high <= 100.
bool AbslParseFlag(absl::string_view text, Watermarks* watermarks, std::string* error);
std::string AbslUnparseFlag(const Watermarks& watermarks);

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_WATERMARKS_H_
