#include "server/cache/session_id.h"

#include <sys/random.h>

#include <array>
#include <cerrno>

#include "absl/strings/escaping.h"

namespace gdpcache::cache {

absl::StatusOr<std::string> NewSessionId() {
  std::array<char, 16> bits;
  ssize_t got = 0;
  do {
    got = getrandom(bits.data(), bits.size(), 0);  // so few bytes come whole or not at all
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(bits.size())) return absl::ErrnoToStatus(errno, "no random bits for a session id");
  return absl::BytesToHexString(absl::string_view(bits.data(), bits.size()));
}

}  // namespace gdpcache::cache
