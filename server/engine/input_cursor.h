#ifndef GDPCACHE_SERVER_ENGINE_INPUT_CURSOR_H_
#define GDPCACHE_SERVER_ENGINE_INPUT_CURSOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/cache/errors.h"

namespace gdpcache::engine {

/// How much of a tensor that comes in frames has arrived. Frames ascend without gaps.
struct InputCursor {
  absl::string_view name;
  std::int64_t size = 0;      // bytes of the whole tensor
  std::int64_t received = 0;  // of these

  bool complete() const { return received == size; }

  /// Whether a frame of `bytes` bytes at `offset` comes next.
  absl::Status CheckFrame(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset != static_cast<std::uint64_t>(received)) {
      return cache::InvalidField("data.offset",
                                 absl::StrCat("of ", name, " is ", offset, "; the next byte is ", received));
    }
    if (bytes > static_cast<std::uint64_t>(size - received)) {
      return cache::InvalidField(
          "data.payload", absl::StrCat("of ", name, " holds ", bytes, " bytes at ", offset, "; the tensor has ", size));
    }
    return absl::OkStatus();
  }

  /// Whether the tensor is whole when the input ends.
  absl::Status CheckComplete() const {
    if (complete()) return absl::OkStatus();
    return cache::InvalidField("data",
                               absl::StrCat("of ", name, " ended after ", received, " bytes; the tensor has ", size));
  }
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_INPUT_CURSOR_H_
