#include "server/config/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace gdpcache::config {

bool ListenAddress::is_loopback() const {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  const absl::Status malformed = absl::InvalidArgumentError("it must be HOST:PORT or [IPV6]:PORT");
  const std::size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return malformed;
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return malformed;
  } else if (host.find(':') != absl::string_view::npos) {
    return malformed;
  }
  if (host.empty() || host.find('\0') != absl::string_view::npos) return malformed;
  int number = 0;
  if (port.empty() || !absl::SimpleAtoi(port, &number) || number < 0 ||
      number > std::numeric_limits<std::uint16_t>::max()) {
    return absl::InvalidArgumentError("its port must be from 0 to 65535");
  }
  return ListenAddress{std::string(host), static_cast<std::uint16_t>(number)};
}

}  // namespace gdpcache::config
