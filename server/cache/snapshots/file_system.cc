#include "server/cache/snapshots/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace gdpcache::cache {
namespace {

/// The call's result or -errno; again while signals interrupt it.
template <typename Call>
auto Repeat(const Call& call) -> decltype(call()) {
  while (true) {
    const auto result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

class OperatingSystem final : public FileSystem {
 public:
  int Open(int directory, const std::string& name, int flags, mode_t mode) override {
    return Repeat([&] { return ::openat(directory, name.c_str(), flags, mode); });
  }
  void Close(int fd) override { ::close(fd); }
  int MakeDirectory(int directory, const std::string& name, mode_t mode) override {
    return Repeat([&] { return ::mkdirat(directory, name.c_str(), mode); });
  }
  int Examine(int fd, struct stat& info) override {
    return Repeat([&] { return ::fstat(fd, &info); });
  }
  int Lock(int fd) override {
    return Repeat([&] { return ::flock(fd, LOCK_EX | LOCK_NB); });
  }
  int List(int directory, std::vector<std::string>& names) override {
    const int fd = Open(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return fd;
    DIR* const stream = ::fdopendir(fd);
    if (stream == nullptr) {
      const int error = errno;
      ::close(fd);
      return -error;
    }
    errno = 0;
    while (const dirent* entry = ::readdir(stream)) {  // each stream is one thread's
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    const int error = errno;
    ::closedir(stream);
    return -error;
  }
  std::int64_t FreeBytes(int fd) override {
    struct statvfs info = {};
    const int result = Repeat([&] { return ::fstatvfs(fd, &info); });
    return result < 0 ? result : static_cast<std::int64_t>(info.f_bavail * info.f_frsize);
  }
  ssize_t Read(int fd, absl::Span<const iovec> pieces, off_t offset) override {
    return Repeat([&] { return ::preadv(fd, pieces.data(), static_cast<int>(pieces.size()), offset); });
  }
  ssize_t Write(int fd, absl::Span<const iovec> pieces, off_t offset) override {
    return Repeat([&] { return ::pwritev(fd, pieces.data(), static_cast<int>(pieces.size()), offset); });
  }
  int Sync(int fd) override {
    return Repeat([&] { return ::fsync(fd); });
  }
  int Touch(int fd) override {
    return Repeat([&] { return ::futimens(fd, nullptr); });
  }
  int Rename(int from_directory, const std::string& from, int to_directory, const std::string& to) override {
    return Repeat([&] { return ::renameat(from_directory, from.c_str(), to_directory, to.c_str()); });
  }
  int Unlink(int directory, const std::string& name) override {
    return Repeat([&] { return ::unlinkat(directory, name.c_str(), 0); });
  }
};

}  // namespace

FileSystem& RealFileSystem() {
  static OperatingSystem system;
  return system;
}

}  // namespace gdpcache::cache
