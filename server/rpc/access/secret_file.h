#ifndef GDPCACHE_SERVER_RPC_ACCESS_SECRET_FILE_H_
#define GDPCACHE_SERVER_RPC_ACCESS_SECRET_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gdpcache::rpc {

enum class Secrecy : std::uint8_t { kPublic, kSecret };

/// A regular file of at most 1 MiB as a whole. Errors name it, and `what` it is. One that is secret must not be
/// readable by everybody nor writable by anyone but its owner, or it is FAILED_PRECONDITION. (A group may read it:
/// Kubernetes mounts secrets so.)
absl::StatusOr<std::string> ReadAccessFile(absl::string_view what, const std::string& path, Secrecy secrecy);

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_ACCESS_SECRET_FILE_H_
