#include "server/rpc/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::rpc {
namespace {

using ::testing::HasSubstr;

class UnixSocketLockTest : public ::testing::Test {
 protected:
  // A socket bound to path_.
  int Bind() const {
    const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return descriptor;
  }

  test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/socket";
};

TEST_F(UnixSocketLockTest, OneAtATime) {
  std::optional<UnixSocketLock> first = UnixSocketLock::Acquire(path_).value();
  const absl::Status status = UnixSocketLock::Acquire(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another server serves " + path_));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".lock"));
  first.reset();
  EXPECT_FALSE(std::filesystem::exists(path_ + ".lock"));
  EXPECT_TRUE(UnixSocketLock::Acquire(path_).ok());
}

TEST_F(UnixSocketLockTest, AStaleSocketAndALeftLockFileAreReplaced) {
  close(Bind());
  std::ofstream(path_ + ".lock") << "";
  EXPECT_TRUE(std::filesystem::is_socket(path_));
  const absl::StatusOr<UnixSocketLock> lock = UnixSocketLock::Acquire(path_);
  EXPECT_TRUE(lock.ok()) << lock.status();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixSocketLockTest, ASocketThatAProgramWithoutALockServesIsLeftAlone) {
  const int descriptor = Bind();
  ASSERT_EQ(listen(descriptor, 1), 0);
  EXPECT_EQ(UnixSocketLock::Acquire(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::is_socket(path_));
  close(descriptor);
}

TEST_F(UnixSocketLockTest, WhatIsNoSocketIsLeftAlone) {
  std::ofstream(path_) << "data";
  EXPECT_EQ(UnixSocketLock::Acquire(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
}

TEST_F(UnixSocketLockTest, ALinkInPlaceOfTheLockFileIsRefused) {
  const std::string victim = directory_.path() + "/victim";
  std::ofstream(victim) << "data";
  std::filesystem::create_symlink(victim, path_ + ".lock");
  EXPECT_FALSE(UnixSocketLock::Acquire(path_).ok());
  EXPECT_EQ(std::filesystem::file_size(victim), 4u);
}

TEST_F(UnixSocketLockTest, AMissingDirectoryIsMadeForThisUserOnly) {
  const std::string directory = directory_.path() + "/made";
  EXPECT_TRUE(UnixSocketLock::Acquire(directory + "/socket").ok());
  struct stat info = {};
  ASSERT_EQ(stat(directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  const absl::Status status = UnixSocketLock::Acquire(directory + "/more/than/one/socket").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot make the directory " + directory + "/more/than/one"));
}

TEST_F(UnixSocketLockTest, WhereSomebodyElseCouldPutTheSocketNothingIsServed) {
  const std::string shared = directory_.path() + "/shared";
  const std::string squatted = shared + "/gdpcache-0";
  std::filesystem::create_directories(squatted);
  ASSERT_EQ(chmod(shared.c_str(), 01777), 0);  // like /tmp
  ASSERT_EQ(chmod(squatted.c_str(), 0777), 0);
  absl::Status status = UnixSocketLock::Acquire(squatted + "/socket").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("everybody may write in " + squatted));
  EXPECT_TRUE(std::filesystem::is_empty(squatted));
  ASSERT_EQ(chmod(squatted.c_str(), 0700), 0);
  EXPECT_TRUE(UnixSocketLock::Acquire(squatted + "/socket").ok());
  EXPECT_TRUE(UnixSocketLock::Acquire(shared + "/free").ok()) << "it becomes this user's";
  if (chown(squatted.c_str(), 54'321, 54'321) != 0) GTEST_SKIP() << "only root can give files to another user";
  status = UnixSocketLock::Acquire(squatted + "/socket").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(squatted + " belongs to the user 54321, not to this one (0)"));
  EXPECT_TRUE(std::filesystem::is_empty(squatted));
}

TEST_F(UnixSocketLockTest, MovingMovesTheLock) {
  UnixSocketLock lock;
  {
    UnixSocketLock inner = UnixSocketLock::Acquire(path_).value();
    lock = std::move(inner);
  }
  EXPECT_FALSE(UnixSocketLock::Acquire(path_).ok());
}

}  // namespace
}  // namespace gdpcache::rpc
