#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_FILE_SYSTEM_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_FILE_SYSTEM_H_

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace gdpcache::cache {

/// The system calls of the disk tier, so that tests can make each of them fail. Names are relative to an open
/// directory. Results are those of the calls, but -errno where they set errno. Interrupted calls are repeated.
/// Thread-safe.
class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  virtual int Open(int directory, const std::string& name, int flags, mode_t mode) = 0;
  virtual void Close(int fd) = 0;
  virtual int MakeDirectory(int directory, const std::string& name, mode_t mode) = 0;
  virtual int Examine(int fd, struct stat& info) = 0;
  virtual int Lock(int fd) = 0;                                          // exclusively, without waiting
  virtual int List(int directory, std::vector<std::string>& names) = 0;  // without "." and ".."
  virtual std::int64_t FreeBytes(int fd) = 0;                            // for us, where that file lies

  virtual ssize_t Read(int fd, absl::Span<const iovec> pieces, off_t offset) = 0;
  virtual ssize_t Write(int fd, absl::Span<const iovec> pieces, off_t offset) = 0;
  virtual int Sync(int fd) = 0;
  virtual int Touch(int fd) = 0;  // modified now
  virtual int Rename(int from_directory, const std::string& from, int to_directory, const std::string& to) = 0;
  virtual int Unlink(int directory, const std::string& name) = 0;
};

/// The operating system's.
FileSystem& RealFileSystem();

/// An open file, closed at the end.
class OpenFile {
 public:
  OpenFile() = default;
  /// `fd` may be an error.
  OpenFile(FileSystem& file_system, int fd) : file_system_(&file_system), fd_(fd) {}
  OpenFile(OpenFile&& other) noexcept : file_system_(other.file_system_), fd_(other.fd_) { other.fd_ = -1; }
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(file_system_, other.file_system_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (fd_ >= 0) file_system_->Close(fd_);
  }

  /// The descriptor, or why there is none.
  int get() const { return fd_; }

 private:
  FileSystem* file_system_ = nullptr;
  int fd_ = -1;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_FILE_SYSTEM_H_
