#ifndef GDPCACHE_CLIENT_LIBRARY_PREFILL_LAYOUT_H_
#define GDPCACHE_CLIENT_LIBRARY_PREFILL_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "gdpcache/cache.h"
#include "gdpcache/prefill.h"

namespace gdpcache::client {

/// A result that a valid call brings.
struct ResultLayout {
  DataType dtype = DataType::kFloat32;
  std::vector<std::int64_t> shape;
  std::int64_t byte_size = 0;
};

/// What a call brings. A result not asked for is absent.
///
/// The server alone judges requests, so that there is one set of rules and of messages: where a request is malformed,
/// so that its results have no size, they are absent here, and the server's error tells what is wrong.
struct PrefillLayout {
  std::optional<ResultLayout> h;
  std::optional<ResultLayout> v_new;
  std::optional<ResultLayout> final_state;
};

/// INVALID_ARGUMENT when a result is too large to have a size in bytes.
absl::StatusOr<PrefillLayout> LayOutResults(const PrefillCall& call, const CacheGeometry& geometry);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_PREFILL_LAYOUT_H_
