#include "server/config/trusted_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gdpcache::config {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

}  // namespace

absl::Status CheckTrust(absl::string_view name, uid_t owner, mode_t mode, uid_t server, Secrecy secrecy) {
  constexpr uid_t kRoot = 0;
  if (owner != kRoot && owner != server) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s is not safe: it belongs to user %d; chown it to root or to the server's user %d", name, owner, server));
  }
  if (secrecy == Secrecy::kPublic) {
    if ((mode & S_IWOTH) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s is not safe: its mode is %04o, and everybody may change it; chmod o-w it", name, mode & 07777));
  }
  const mode_t forbidden = owner == kRoot ? S_IRWXO | S_IWGRP | S_IXGRP : S_IRWXO | S_IRWXG;
  if ((mode & forbidden) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s is not safe: its mode is %04o, and others than its owner may %s it; chmod 600 it%s", name,
                      mode & 07777, (mode & forbidden & (S_IRGRP | S_IROTH)) != 0 ? "read" : "change",
                      owner == kRoot ? ", or 640 where a group has to read it" : ", or make it root's and 640"));
}

absl::StatusOr<std::string> ReadTrustedFile(absl::string_view what, const std::string& path, Secrecy secrecy) {
  const std::string name = absl::StrCat(what, " '", path, "'");
  // Not to wait for the other end of a pipe, which is refused below.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name, " cannot be opened"));
  const absl::Cleanup close_it = [descriptor] { close(descriptor); };
  struct stat found = {};
  if (fstat(descriptor, &found) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(name, " cannot be looked at"));
  if (!S_ISREG(found.st_mode)) return absl::FailedPreconditionError(absl::StrCat(name, " is not a regular file"));
  if (absl::Status status = CheckTrust(name, found.st_uid, found.st_mode, geteuid(), secrecy); !status.ok()) {
    return status;
  }
  std::string bytes;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = read(descriptor, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name, " cannot be read"));
    if (got == 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
    if (bytes.size() > kMaxBytes) {
      return absl::FailedPreconditionError(absl::StrCat(name, " has more than ", kMaxBytes, " bytes"));
    }
  }
}

}  // namespace gdpcache::config
