#ifndef GDPCACHE_OPTIONS_H_
#define GDPCACHE_OPTIONS_H_

#include <optional>

#include "absl/time/time.h"

namespace gdpcache {

/// Of one call.
struct CallOptions {
  std::optional<absl::Duration> timeout;  // ClientOptions::timeout unless given; absl::InfiniteDuration() for none
};

/// Of a connection.
struct ClientOptions {
  absl::Duration timeout = absl::Seconds(60);         // of calls that give none
  absl::Duration connect_timeout = absl::Seconds(5);  // of Connect
  bool wait_for_server = false;  // Connect keeps trying until connect_timeout where nobody listens yet
};

}  // namespace gdpcache

#endif  // GDPCACHE_OPTIONS_H_
