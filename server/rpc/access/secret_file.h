#ifndef GDPCACHE_SERVER_RPC_ACCESS_SECRET_FILE_H_
#define GDPCACHE_SERVER_RPC_ACCESS_SECRET_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gdpcache::rpc {

enum class Secrecy : std::uint8_t { kPublic, kSecret };

/// FAILED_PRECONDITION unless a file of this owner and mode is one that only root and `server`, the server's user, may
/// change, and nobody else but a group may read: root's files by any group (Kubernetes mounts secrets so, and Debian
/// keeps keys so), the server's own by nobody. `name` is the file's, for the message.
absl::Status CheckSecrecy(absl::string_view name, uid_t owner, mode_t mode, uid_t server);

/// A regular file of at most 1 MiB as a whole. Errors name it, and `what` it is. One that is secret must pass
/// CheckSecrecy; one that is public must not be everybody's to change.
absl::StatusOr<std::string> ReadAccessFile(absl::string_view what, const std::string& path, Secrecy secrecy);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_ACCESS_SECRET_FILE_H_
