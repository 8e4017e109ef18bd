#include "proto/sockets/socket_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace gdpcache {
namespace {

using std::filesystem::path;

bool EverybodyMayWrite(const struct stat& info) { return (info.st_mode & S_IWOTH) != 0; }

/// As /tmp: everybody may put things there, and nobody may take away what is another's.
bool IsShared(const struct stat& info) { return EverybodyMayWrite(info) && (info.st_mode & S_ISVTX) != 0; }

constexpr const char* kAdvice = "; use a directory that nobody else may write in";

absl::Status CheckComponents(const path& absolute) {
  path above;
  struct stat directory = {};
  bool in_shared = false;  // some directory above is shared
  for (const path& component : absolute) {
    const path here = above / component;
    struct stat info = {};
    const bool exists = lstat(here.c_str(), &info) == 0;
    if (!above.empty() && IsShared(directory)) {
      if (!exists) {
        return absl::NotFoundError(
            absl::StrCat(here.native(), " is not there, and everybody may put it there", kAdvice));
      }
      if (info.st_uid != geteuid() && info.st_uid != 0 && info.st_uid != directory.st_uid) {
        return absl::FailedPreconditionError(absl::StrCat(here.native(), " belongs to the user ", info.st_uid,
                                                          ", not to this one (", geteuid(),
                                                          "), and everybody may put it there", kAdvice));
      }
      in_shared = true;
    }
    if (!exists) return absl::OkStatus();  // for the owner of the directory to make
    if (S_ISLNK(info.st_mode) && stat(here.c_str(), &info) != 0) return absl::OkStatus();  // leads nowhere
    if (in_shared && S_ISDIR(info.st_mode) && EverybodyMayWrite(info) && !IsShared(info)) {
      return absl::FailedPreconditionError(absl::StrCat("everybody may write in ", here.native(), kAdvice));
    }
    above = here;
    directory = info;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSocketPath(const std::string& socket) {
  std::error_code error;
  const path absolute = std::filesystem::absolute(socket, error);
  if (error) return absl::OkStatus();  // without a working directory nothing can be reached, either
  if (absl::Status status = CheckComponents(absolute.lexically_normal()); !status.ok()) return status;
  // And where links lead, as far as there is something.
  const path resolved = std::filesystem::weakly_canonical(absolute, error);
  return error ? absl::OkStatus() : CheckComponents(resolved);
}

}  // namespace gdpcache
