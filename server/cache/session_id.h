#ifndef GDPCACHE_SERVER_CACHE_SESSION_ID_H_
#define GDPCACHE_SERVER_CACHE_SESSION_ID_H_

#include <string>

#include "absl/status/statusor.h"

namespace gdpcache::cache {

/// 128 bits of the kernel's randomness as 32 hexadecimal digits: cannot be guessed. INTERNAL if there are none to be
/// had.
absl::StatusOr<std::string> NewSessionId();

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SESSION_ID_H_
