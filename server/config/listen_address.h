#ifndef GDPCACHE_SERVER_CONFIG_LISTEN_ADDRESS_H_
#define GDPCACHE_SERVER_CONFIG_LISTEN_ADDRESS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gdpcache::config {

struct ListenAddress {
  std::string host;  // without the brackets of an IPv6 address
  std::uint16_t port = 0;

  /// Reachable from this machine only: localhost, 127.0.0.0/8 or ::1. Other names count as reachable from elsewhere.
  bool is_loopback() const;
};

/// "host:port" or "[ipv6]:port". INVALID_ARGUMENT says what it must be.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_LISTEN_ADDRESS_H_
