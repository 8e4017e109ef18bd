#ifndef GDPCACHE_SERVER_RPC_UNIX_SOCKET_H_
#define GDPCACHE_SERVER_RPC_UNIX_SOCKET_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdpcache::rpc {

/// Where descriptors are taken, beside the socket that gRPC serves.
inline std::string DescriptorSocketPath(const std::string& path) { return path + ".fd"; }

/// Removes a socket that nobody serves, if there is one at `path`. FAILED_PRECONDITION when somebody does, or when
/// something other than a socket is there.
absl::Status RemoveStaleSocket(const std::string& path);

/// The right to listen on a Unix socket's path, held by a locked file PATH.lock beside it: a socket that a crashed
/// server left can be replaced without taking it from a living one. Movable; gives the right back and removes the file
/// when destroyed.
class UnixSocketLock {
 public:
  /// Removes a stale socket, too, and makes the socket's directory, for this user only, where that is missing.
  /// FAILED_PRECONDITION when another process serves the path, when something other than a socket is there, and when
  /// somebody else could have put it there (CheckSocketPath); other errors when the file system refuses.
  static absl::StatusOr<UnixSocketLock> Acquire(const std::string& path);

  /// Where the lock of the socket at `path` is.
  static std::string LockPath(const std::string& path) { return path + ".lock"; }

  UnixSocketLock() = default;
  UnixSocketLock(UnixSocketLock&& other) noexcept
      : lock_path_(std::move(other.lock_path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  UnixSocketLock& operator=(UnixSocketLock&& other) noexcept {
    std::swap(lock_path_, other.lock_path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  UnixSocketLock(const UnixSocketLock&) = delete;
  UnixSocketLock& operator=(const UnixSocketLock&) = delete;
  ~UnixSocketLock();

 private:
  UnixSocketLock(std::string lock_path, int descriptor) : lock_path_(std::move(lock_path)), descriptor_(descriptor) {}

  std::string lock_path_;
  int descriptor_ = -1;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_UNIX_SOCKET_H_
