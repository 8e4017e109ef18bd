#ifndef GDPCACHE_SERVER_CONFIG_TRUSTED_FILE_H_
#define GDPCACHE_SERVER_CONFIG_TRUSTED_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gdpcache::config {

/// Keys and tokens are secret; certificates, authorities and the configuration are not, but they say who may do what.
enum class Secrecy : std::uint8_t { kPublic, kSecret };

/// FAILED_PRECONDITION unless a file of this owner and mode belongs to root or to `server`, the server's user, and
/// * where it is public, not everybody may change it: a group may, if its owner has let it;
/// * where it is secret, nobody else may change it, and nobody but a group may read it: root's files by any group
///   (Kubernetes mounts secrets so, and Debian keeps keys so), the server's own by nobody.
/// `name` is the file's, for the message.
absl::Status CheckTrust(absl::string_view name, uid_t owner, mode_t mode, uid_t server, Secrecy secrecy);

/// A regular file of at most 1 MiB as a whole, if it passes CheckTrust; of a link what it leads to. Errors name it, and
/// `what` it is.
absl::StatusOr<std::string> ReadTrustedFile(absl::string_view what, const std::string& path, Secrecy secrecy);

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_TRUSTED_FILE_H_
