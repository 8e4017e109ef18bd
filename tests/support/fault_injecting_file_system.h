#ifndef GDPCACHE_TESTS_SUPPORT_FAULT_INJECTING_FILE_SYSTEM_H_
#define GDPCACHE_TESTS_SUPPORT_FAULT_INJECTING_FILE_SYSTEM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "server/cache/snapshots/file_system.h"

namespace gdpcache::test {

/// Passes every call on to the operating system, except those it has been told to fail or to cut short. Thread-safe.
class FaultInjectingFileSystem final : public cache::FileSystem {
 public:
  enum class Operation : std::uint8_t {
    kOpen,
    kMakeDirectory,
    kExamine,
    kLock,
    kList,
    kFreeBytes,
    kRead,
    kWrite,
    kSync,
    kTouch,
    kRename,
    kUnlink,
  };
  static constexpr std::size_t kOperations = 12;

  /// The next `passed` calls of the operation pass, the one after fails with `error` (an errno).
  void FailAfter(Operation operation, std::int64_t passed, int error);

  /// The same for calls of any operation. Which one it was tells Failed().
  void FailAnyAfter(std::int64_t passed, int error);

  /// All calls of the operation fail until Heal.
  void FailAlways(Operation operation, int error);

  /// No more failures, no more short transfers.
  void Heal();

  /// The name of the operation that FailAnyAfter has failed; empty when it has failed none.
  std::string Failed() const;

  /// Calls of Read and Write do at most so many bytes.
  void LimitTransfers(std::size_t bytes);

  /// FreeBytes returns this.
  void SetFreeBytes(std::int64_t bytes);

  /// Runs at the start of each call of the operation, on its thread.
  void BeforeEach(Operation operation, std::function<void()> hook);

  /// Files opened and not yet closed.
  std::int64_t open_files() const;

  int Open(int directory, const std::string& name, int flags, mode_t mode) override;
  void Close(int fd) override;
  int MakeDirectory(int directory, const std::string& name, mode_t mode) override;
  int Examine(int fd, struct stat& info) override;
  int Lock(int fd) override;
  int List(int directory, std::vector<std::string>& names) override;
  std::int64_t FreeBytes(int fd) override;
  ssize_t Read(int fd, absl::Span<const iovec> pieces, off_t offset) override;
  ssize_t Write(int fd, absl::Span<const iovec> pieces, off_t offset) override;
  int Sync(int fd) override;
  int Touch(int fd) override;
  int Rename(int from_directory, const std::string& from, int to_directory, const std::string& to) override;
  int Unlink(int directory, const std::string& name) override;

 private:
  struct Plan {
    std::int64_t passes = -1;  // -1: fails none
    bool always = false;
    int error = 0;
    std::function<void()> hook;
  };

  /// 0 or -errno.
  int Enter(Operation operation);
  /// The first bytes of `pieces`, as many as one transfer may do.
  std::vector<iovec> Cut(absl::Span<const iovec> pieces) const;

  cache::FileSystem& real_ = cache::RealFileSystem();
  mutable std::mutex mutex_;
  std::array<Plan, kOperations> plans_;
  Plan any_;
  std::string failed_;
  std::size_t most_ = std::numeric_limits<std::size_t>::max();
  std::int64_t free_bytes_ = -1;  // -1: what there are
  std::int64_t open_files_ = 0;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_FAULT_INJECTING_FILE_SYSTEM_H_
