#include "server/rpc/unix_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "proto/sockets/socket_path.h"

namespace gdpcache::rpc {
namespace {

absl::Status ErrnoStatus(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

// Whether `descriptor` is still the file that `path` names.
bool IsCurrent(int descriptor, const std::string& path) {
  struct stat opened = {};
  struct stat named = {};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

bool SomebodyListens(const std::string& path) {
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return false;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  // EPROTOTYPE: somebody does, on a socket of another type.
  const bool listens =
      connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EPROTOTYPE;
  close(descriptor);
  return listens;
}

absl::Status PrepareDirectory(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path();
  if (!directory.empty() && mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return ErrnoStatus("cannot make the directory", directory);
  }
  const absl::Status status = CheckSocketPath(path);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;  // what is not there, bind makes
}

}  // namespace

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat named = {};
  if (lstat(path.c_str(), &named) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus("cannot look at", path);
  }
  if (!S_ISSOCK(named.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " exists and is not a socket"));
  }
  if (SomebodyListens(path)) return absl::FailedPreconditionError(absl::StrCat("another program serves ", path));
  if (unlink(path.c_str()) != 0) return ErrnoStatus("cannot remove the stale socket", path);
  return absl::OkStatus();
}

absl::StatusOr<UnixSocketLock> UnixSocketLock::Acquire(const std::string& path) {
  if (absl::Status status = PrepareDirectory(path); !status.ok()) return status;
  const std::string lock_path = LockPath(path);
  while (true) {
    const int descriptor = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (descriptor < 0) return ErrnoStatus("cannot open the lock file", lock_path);
    UnixSocketLock lock(lock_path, descriptor);
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const absl::Status status = errno == EWOULDBLOCK
                                      ? absl::FailedPreconditionError(absl::StrCat("another server serves ", path))
                                      : ErrnoStatus("cannot lock", lock_path);
      close(std::exchange(lock.descriptor_, -1));  // the file is not ours to remove
      return status;
    }
    // Its holder may have removed the file between our open and its end.
    if (!IsCurrent(descriptor, lock_path)) {
      close(std::exchange(lock.descriptor_, -1));
      continue;
    }
    if (absl::Status status = RemoveStaleSocket(path); !status.ok()) return status;
    return lock;
  }
}

UnixSocketLock::~UnixSocketLock() {
  if (descriptor_ < 0) return;
  unlink(lock_path_.c_str());  // while it is locked: nobody else can hold it
  close(descriptor_);
}

}  // namespace gdpcache::rpc
