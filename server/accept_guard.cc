// The program's own accept4, which gRPC's library uses in place of libc's: connections must not take the last file
// descriptors. gRPC (1.51 and some versions after it) stops listening on an address, for good and with no more than a
// line in the log, when accept4 once fails for want of a descriptor; whoever can open connections could make the server
// deaf. And the files of snapshots and the memory of clients need descriptors, too. It also asks the kernel who
// connects to a Unix socket, where that says who somebody is: gRPC does not tell.

#include "server/accept_guard.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/cache/clock.h"
#include "server/observe/log_limiter.h"
#include "server/observe/logging.h"

namespace gdpcache {
namespace {

std::atomic<bool> g_own_user_alone = false;

constexpr rlim_t kKept = 256;  // descriptors that are not for connections; of few, a quarter

/// The first descriptor that no connection gets. A new descriptor is the lowest that is free, so there are as many.
int FirstKept() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return INT32_MAX;
  const rlim_t most = std::min(limit.rlim_cur, static_cast<rlim_t>(INT32_MAX));
  return static_cast<int>(most - std::min(kKept, most / 4));
}

void LogRefusal(int first_kept) {
  static observe::LogLimiter& limiter = *new observe::LogLimiter(/*per_second=*/0.1, /*burst=*/1);
  const std::optional<std::int64_t> left_out = limiter.Admit(cache::SteadyNow());
  if (!left_out.has_value()) return;
  observe::Log(
      observe::LogLevel::kWarning,
      absl::StrCat("connections are refused: they have the ", first_kept, " file descriptors that they may have"),
      {{"left_out", *left_out}});
}

/// Whether another user, or root, is at the other end of a Unix socket.
bool IsSomebodyElse(int connection) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  if (getsockopt(connection, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain != AF_UNIX) return false;
  ucred peer = {};
  size = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid();
}

}  // namespace

void LetInOwnUserAlone() { g_own_user_alone = true; }

}  // namespace gdpcache

extern "C" int accept4(int listener, sockaddr* address, socklen_t* size, int flags) {
  static const int kFirstKept = gdpcache::FirstKept();
  const socklen_t room = size == nullptr ? 0 : *size;
  while (true) {
    if (size != nullptr) *size = room;
    const auto connection = static_cast<int>(syscall(SYS_accept4, listener, address, size, flags));
    if (connection >= kFirstKept) {
      gdpcache::LogRefusal(kFirstKept);
    } else if (connection < 0 || !gdpcache::g_own_user_alone || !gdpcache::IsSomebodyElse(connection)) {
      return connection;  // or an error
    }
    close(connection);
  }
}
