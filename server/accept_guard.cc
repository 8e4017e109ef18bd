// The program's own accept4, which gRPC's library uses in place of libc's. gRPC (1.51 and some versions after it) stops
// listening on an address, for good and with no more than a line in the log, when accept4 once fails for want of a
// descriptor; whoever can open connections could make the server deaf. So connections do not take the last file
// descriptors, which the files of snapshots and the memory of clients need, too; and where those have taken them all, a
// connection is refused without an error of accept4. It also asks the kernel who connects to a Unix socket, where that
// says who somebody is: gRPC does not tell.

#include "server/accept_guard.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/cache/clock.h"
#include "server/observe/log_limiter.h"
#include "server/observe/logging.h"

namespace gdpcache {
namespace {

std::atomic<bool> g_own_user_alone = false;

constexpr rlim_t kKept = 512;  // descriptors that are not for connections; of few, a quarter

/// The first descriptor that no connection gets. A new descriptor is the lowest that is free, so there are as many.
int FirstKept() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return INT32_MAX;
  const rlim_t most = std::min(limit.rlim_cur, static_cast<rlim_t>(INT32_MAX));
  return static_cast<int>(most - std::min(kKept, most / 4));
}

void LogRefusal(absl::string_view why) {
  static observe::LogLimiter& limiter = *new observe::LogLimiter(/*per_second=*/0.1, /*burst=*/1);
  const std::optional<std::int64_t> left_out = limiter.Admit(cache::SteadyNow());
  if (!left_out.has_value()) return;
  observe::Log(observe::LogLevel::kWarning, absl::StrCat("connections are refused: ", why), {{"left_out", *left_out}});
}

/// A descriptor to be given up for a moment when there is no other: without one a connection cannot even be refused.
class Spare {
 public:
  Spare() { Open(); }

  /// Takes the next connection and closes it. False if none came, or a descriptor was lacking for it still.
  bool RefuseNext(int listener) {
    const std::lock_guard lock(mutex_);
    if (descriptor_ >= 0) close(descriptor_);
    const auto connection = static_cast<int>(syscall(SYS_accept4, listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection >= 0) close(connection);
    Open();
    return connection >= 0;
  }

 private:
  void Open() { descriptor_ = open("/dev/null", O_RDONLY | O_CLOEXEC); }

  std::mutex mutex_;
  int descriptor_ = -1;  // the mutex guards it
};

/// Errors of a connection that was lost before it was taken.
bool IsOfConnection(int error) {
  return error == ECONNABORTED || error == EPROTO || error == ENETDOWN || error == EHOSTDOWN || error == ENONET ||
         error == EHOSTUNREACH || error == ENETUNREACH;
}

bool IsOfDescriptors(int error) { return error == EMFILE || error == ENFILE; }

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
  static gdpcache::Spare& spare = *new gdpcache::Spare();
  const socklen_t room = size == nullptr ? 0 : *size;
  while (true) {
    if (size != nullptr) *size = room;
    const auto connection = static_cast<int>(syscall(SYS_accept4, listener, address, size, flags));
    if (connection < 0) {
      if (gdpcache::IsOfConnection(errno)) continue;
      if (gdpcache::IsOfDescriptors(errno)) {
        gdpcache::LogRefusal("there is no file descriptor left");
        if (spare.RefuseNext(listener)) continue;
      } else if (errno != ENOMEM && errno != ENOBUFS) {
        return connection;
      }
      errno = EAGAIN;  // what waits is found when the next one comes
      return connection;
    }
    if (connection >= kFirstKept) {
      gdpcache::LogRefusal(absl::StrCat("they have the ", kFirstKept, " file descriptors that they may have"));
    } else if (!gdpcache::g_own_user_alone || !gdpcache::IsSomebodyElse(connection)) {
      return connection;
    }
    close(connection);
  }
}
