#include "tests/support/fault_injecting_file_system.h"

#include <algorithm>
#include <utility>

namespace gdpcache::test {
namespace {

constexpr std::array<const char*, FaultInjectingFileSystem::kOperations> kNames = {
    "Open", "MakeDirectory", "Examine", "Lock",  "List",   "FreeBytes",
    "Read", "Write",         "Sync",    "Touch", "Rename", "Unlink"};

}  // namespace

void FaultInjectingFileSystem::FailAfter(Operation operation, std::int64_t passed, int error) {
  const std::lock_guard lock(mutex_);
  Plan& plan = plans_[static_cast<std::size_t>(operation)];
  plan.passes = passed;
  plan.error = error;
}

void FaultInjectingFileSystem::FailAnyAfter(std::int64_t passed, int error) {
  const std::lock_guard lock(mutex_);
  any_.passes = passed;
  any_.error = error;
  failed_.clear();
}

void FaultInjectingFileSystem::FailAlways(Operation operation, int error) {
  const std::lock_guard lock(mutex_);
  Plan& plan = plans_[static_cast<std::size_t>(operation)];
  plan.always = true;
  plan.error = error;
}

void FaultInjectingFileSystem::Heal() {
  const std::lock_guard lock(mutex_);
  for (Plan& plan : plans_) plan = Plan();
  any_ = Plan();
  most_ = std::numeric_limits<std::size_t>::max();
  free_bytes_ = -1;
}

std::string FaultInjectingFileSystem::Failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

void FaultInjectingFileSystem::LimitTransfers(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  most_ = bytes;
}

void FaultInjectingFileSystem::SetFreeBytes(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  free_bytes_ = bytes;
}

void FaultInjectingFileSystem::BeforeEach(Operation operation, std::function<void()> hook) {
  const std::lock_guard lock(mutex_);
  plans_[static_cast<std::size_t>(operation)].hook = std::move(hook);
}

std::int64_t FaultInjectingFileSystem::open_files() const {
  const std::lock_guard lock(mutex_);
  return open_files_;
}

int FaultInjectingFileSystem::Enter(Operation operation) {
  std::function<void()> hook;
  int result = 0;
  {
    const std::lock_guard lock(mutex_);
    Plan& plan = plans_[static_cast<std::size_t>(operation)];
    hook = plan.hook;
    if (plan.always || (plan.passes >= 0 && plan.passes-- == 0)) result = -plan.error;
    if (any_.passes >= 0 && any_.passes-- == 0) {
      result = -any_.error;
      failed_ = kNames[static_cast<std::size_t>(operation)];
    }
  }
  if (hook) hook();
  return result;
}

std::vector<iovec> FaultInjectingFileSystem::Cut(absl::Span<const iovec> pieces) const {
  const std::lock_guard lock(mutex_);
  std::size_t left = most_;
  std::vector<iovec> cut;
  for (const iovec& piece : pieces) {
    cut.push_back({piece.iov_base, std::min(piece.iov_len, left)});
    left -= cut.back().iov_len;
  }
  return cut;
}

int FaultInjectingFileSystem::Open(int directory, const std::string& name, int flags, mode_t mode) {
  if (const int error = Enter(Operation::kOpen); error < 0) return error;
  const int fd = real_.Open(directory, name, flags, mode);
  const std::lock_guard lock(mutex_);
  open_files_ += fd >= 0 ? 1 : 0;
  return fd;
}

void FaultInjectingFileSystem::Close(int fd) {
  real_.Close(fd);
  const std::lock_guard lock(mutex_);
  --open_files_;
}

int FaultInjectingFileSystem::MakeDirectory(int directory, const std::string& name, mode_t mode) {
  const int error = Enter(Operation::kMakeDirectory);
  return error < 0 ? error : real_.MakeDirectory(directory, name, mode);
}

int FaultInjectingFileSystem::Examine(int fd, struct stat& info) {
  const int error = Enter(Operation::kExamine);
  return error < 0 ? error : real_.Examine(fd, info);
}

int FaultInjectingFileSystem::Lock(int fd) {
  const int error = Enter(Operation::kLock);
  return error < 0 ? error : real_.Lock(fd);
}

int FaultInjectingFileSystem::List(int directory, std::vector<std::string>& names) {
  const int error = Enter(Operation::kList);
  return error < 0 ? error : real_.List(directory, names);
}

std::int64_t FaultInjectingFileSystem::FreeBytes(int fd) {
  if (const int error = Enter(Operation::kFreeBytes); error < 0) return error;
  const std::lock_guard lock(mutex_);
  return free_bytes_ >= 0 ? free_bytes_ : real_.FreeBytes(fd);
}

ssize_t FaultInjectingFileSystem::Read(int fd, absl::Span<const iovec> pieces, off_t offset) {
  const int error = Enter(Operation::kRead);
  return error < 0 ? error : real_.Read(fd, Cut(pieces), offset);
}

ssize_t FaultInjectingFileSystem::Write(int fd, absl::Span<const iovec> pieces, off_t offset) {
  const int error = Enter(Operation::kWrite);
  return error < 0 ? error : real_.Write(fd, Cut(pieces), offset);
}

int FaultInjectingFileSystem::Sync(int fd) {
  const int error = Enter(Operation::kSync);
  return error < 0 ? error : real_.Sync(fd);
}

int FaultInjectingFileSystem::Touch(int fd) {
  const int error = Enter(Operation::kTouch);
  return error < 0 ? error : real_.Touch(fd);
}

int FaultInjectingFileSystem::Rename(int from_directory, const std::string& from, int to_directory,
                                     const std::string& to) {
  const int error = Enter(Operation::kRename);
  return error < 0 ? error : real_.Rename(from_directory, from, to_directory, to);
}

int FaultInjectingFileSystem::Unlink(int directory, const std::string& name) {
  const int error = Enter(Operation::kUnlink);
  return error < 0 ? error : real_.Unlink(directory, name);
}

}  // namespace gdpcache::test
