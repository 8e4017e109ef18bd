#include "server/rpc/unix_socket.h"

#include <sys/socket.h>
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
