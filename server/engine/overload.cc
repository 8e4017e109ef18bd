#include "server/engine/overload.h"

#include "absl/strings/cord.h"
#include "server/cache/errors.h"

namespace gdpcache::engine {
namespace {

constexpr absl::string_view kPayload = "gdpcache/overload";

}  // namespace

absl::Status Overloaded(absl::string_view message, absl::Duration retry_after) {
  absl::Status status = cache::Exhausted(message, retry_after);
  status.SetPayload(kPayload, absl::Cord());
  return status;
}

bool IsOverload(const absl::Status& status) { return status.GetPayload(kPayload).has_value(); }

}  // namespace gdpcache::engine
