#include "proto/sockets/socket_path.h"

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kOtherUser = 54'321;

class SocketPathTest : public ::testing::Test {
 protected:
  SocketPathTest() {
    MakeDirectory("shared", 01777);  // like /tmp
    MakeDirectory("shared/own", 0755);
  }

  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }

  void MakeDirectory(const std::string& name, mode_t mode) const {
    std::filesystem::create_directory(Path(name));
    EXPECT_EQ(chmod(Path(name).c_str(), mode), 0);  // whatever the umask is
  }

  /// Its kind does not matter.
  void MakeFile(const std::string& name) const { std::ofstream(Path(name)) << ""; }

  /// To another user; false where this one may not give files away.
  bool Give(const std::string& name) const { return lchown(Path(name).c_str(), kOtherUser, kOtherUser) == 0; }

  void ExpectRefused(const std::string& name, const std::string& why) const {
    const absl::Status status = CheckSocketPath(Path(name));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
  void ExpectFine(const std::string& name) const {
    const absl::Status status = CheckSocketPath(Path(name));
    EXPECT_TRUE(status.ok()) << status;
  }

  test::TemporaryDirectory directory_;
};

TEST_F(SocketPathTest, ADirectoryOfOnesOwnMayBeBelowASharedOne) {
  ExpectFine("shared/own/socket");
  MakeFile("shared/own/socket");
  ExpectFine("shared/own/socket");
  ExpectFine("shared/own/absent/socket");
}

TEST_F(SocketPathTest, ASocketOfOnesOwnMayLieInASharedDirectory) {
  MakeFile("shared/socket");
  ExpectFine("shared/socket");
}

TEST_F(SocketPathTest, AFreeNameInASharedDirectoryIsAnybodys) {
  for (const std::string name : {"shared/free", "shared/free/socket"}) {
    const absl::Status status = CheckSocketPath(Path(name));
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("shared/free") + " is not there, and everybody may"));
  }
}

TEST_F(SocketPathTest, ADirectoryOpenToEverybodyIsRefusedBelowASharedOneOnly) {
  MakeDirectory("shared/own/open", 0777);
  ExpectRefused("shared/own/open/socket", "everybody may write in " + Path("shared/own/open"));
  MakeDirectory("shared/own/open", 0775);
  ExpectFine("shared/own/open/socket");
}

TEST_F(SocketPathTest, WhatIsOpenToEverybodyElsewhereIsItsOwnersAffair) {
  // As a volume that containers share.
  std::string open = std::filesystem::current_path() / "open-XXXXXX";
  if (open.starts_with("/tmp/") || open.starts_with("/var/tmp/")) GTEST_SKIP() << "built below a shared directory";
  ASSERT_NE(mkdtemp(open.data()), nullptr);
  EXPECT_EQ(chmod(open.c_str(), 0777), 0);
  EXPECT_TRUE(CheckSocketPath(open + "/socket").ok()) << CheckSocketPath(open + "/socket");
  std::filesystem::remove(open);
}

TEST_F(SocketPathTest, WhatIsAnotherUsersInASharedDirectoryIsRefused) {
  MakeFile("shared/socket");
  if (!Give("shared/socket")) GTEST_SKIP() << "only root can give files to another user";
  ExpectRefused("shared/socket", Path("shared/socket") + " belongs to the user 54321, not to this one (0)");
  MakeDirectory("shared/theirs", 0755);
  EXPECT_TRUE(Give("shared/theirs"));
  ExpectRefused("shared/theirs/socket", Path("shared/theirs") + " belongs to the user 54321");
  ExpectRefused("shared/own/../theirs/socket", Path("shared/theirs") + " belongs to the user 54321");
  EXPECT_TRUE(Give("shared"));
  ExpectFine("shared/socket");  // who may take away anything there in any case
}

TEST_F(SocketPathTest, WhatIsAnotherUsersElsewhereIsItsOwnersAffair) {
  MakeDirectory("theirs", 0755);
  MakeFile("theirs/socket");
  if (!Give("theirs") || !Give("theirs/socket")) GTEST_SKIP() << "only root can give files to another user";
  ExpectFine("theirs/socket");
}

TEST_F(SocketPathTest, LinksAreFollowed) {
  MakeDirectory("shared/theirs", 0755);
  if (!Give("shared/theirs")) GTEST_SKIP() << "only root can give files to another user";
  std::filesystem::create_symlink(Path("shared/theirs"), Path("link"));
  ExpectRefused("link/socket", Path("shared/theirs") + " belongs to the user 54321");
  std::filesystem::create_symlink(Path("shared/own"), Path("shared/link"));
  ExpectFine("shared/link/socket");
  EXPECT_TRUE(Give("shared/link"));
  ExpectRefused("shared/link/socket", Path("shared/link") + " belongs to the user 54321");
}

TEST_F(SocketPathTest, RelativePathsAreOfTheWorkingDirectory) {
  MakeDirectory("shared/own/open", 0777);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(Path("shared/own/open"));
  EXPECT_EQ(CheckSocketPath("socket").code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace gdpcache
