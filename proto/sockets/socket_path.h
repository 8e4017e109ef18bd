#ifndef GDPCACHE_PROTO_SOCKETS_SOCKET_PATH_H_
#define GDPCACHE_PROTO_SOCKETS_SOCKET_PATH_H_

#include <string>

#include "absl/status/status.h"

namespace gdpcache {

/// Whether the Unix socket at `path` is what it is taken for, as far as the file system tells. Where everybody may put
/// files that only their owners may take away, as in /tmp, another user may have put a socket, or a directory with one,
/// under a name that is known in advance. So what lies in such a directory must belong to this user, to root or to the
/// owner of the directory (the rule of Linux's fs.protected_symlinks), and what lies in it must not be open to
/// everybody in turn. Other directories are taken to be what their owners want.
///
/// FAILED_PRECONDITION where that does not hold; NOT_FOUND where somebody else could still put something there, for
/// there is nothing yet. Both say how to get out of it.
absl::Status CheckSocketPath(const std::string& path);

}  // namespace gdpcache

#endif  // GDPCACHE_PROTO_SOCKETS_SOCKET_PATH_H_
