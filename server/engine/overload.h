#ifndef GDPCACHE_SERVER_ENGINE_OVERLOAD_H_
#define GDPCACHE_SERVER_ENGINE_OVERLOAD_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gdpcache::engine {

/// RESOURCE_EXHAUSTED since the server has too much to do at once, worth another try after `retry_after`: unlike what
/// is beyond a limit of what it keeps.
absl::Status Overloaded(absl::string_view message, absl::Duration retry_after);

/// Whether it was made above.
bool IsOverload(const absl::Status& status);

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_OVERLOAD_H_
