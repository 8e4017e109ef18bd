#ifndef GDPCACHE_SERVER_CONFIG_BYTE_SIZE_H_
#define GDPCACHE_SERVER_CONFIG_BYTE_SIZE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace gdpcache::config {

/// A number of bytes as people write it: a whole number, optionally with KiB, MiB, GiB or TiB.
struct ByteSize {
  std::int64_t bytes = 0;
};

/// Abseil's flag interface. False, with no more said, for anything else or beyond 2^63 - 1 bytes.
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);

/// In the largest unit that divides it: "16MiB", "1000".
std::string AbslUnparseFlag(const ByteSize& size);

/// A ByteSize, or "auto": what the server finds sensible.
struct AutoByteSize {
  std::optional<std::int64_t> bytes;
};
bool AbslParseFlag(absl::string_view text, AutoByteSize* size, std::string* error);
std::string AbslUnparseFlag(const AutoByteSize& size);

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_BYTE_SIZE_H_
