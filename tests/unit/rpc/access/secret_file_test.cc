#include "server/rpc/access/secret_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::rpc {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kRoot = 0;
constexpr uid_t kServer = 10'001;
constexpr uid_t kStranger = 1'000;

absl::Status Check(uid_t owner, mode_t mode) { return CheckSecrecy("the key 'k'", owner, mode, kServer); }

TEST(SecretFileTest, RootsFilesMayBeReadByAGroup) {
  for (const mode_t mode : {0400, 0440, 0600, 0640, S_IFREG | 0640}) {
    EXPECT_TRUE(Check(kRoot, mode).ok()) << std::oct << mode;
  }
  for (const mode_t mode : {0444, 0644, 0604, 0660, 0620, 0650, 0602, 0601}) {
    EXPECT_EQ(Check(kRoot, mode).code(), absl::StatusCode::kFailedPrecondition) << std::oct << mode;
  }
  EXPECT_EQ(Check(kRoot, 0644).message(),
            "the key 'k' is not safe: its mode is 0644, and others than its owner may read it; chmod 600 it, or 640 "
            "where a group has to read it");
}

TEST(SecretFileTest, TheServersOwnFilesMayBeReadByNobodyElse) {
  for (const mode_t mode : {0400, 0600, 0700}) EXPECT_TRUE(Check(kServer, mode).ok()) << std::oct << mode;
  for (const mode_t mode : {0440, 0640, 0620, 0610, 0604, 0602, 0601, 0666}) {
    EXPECT_EQ(Check(kServer, mode).code(), absl::StatusCode::kFailedPrecondition) << std::oct << mode;
  }
  EXPECT_EQ(Check(kServer, S_IFREG | 0620).message(),
            "the key 'k' is not safe: its mode is 0620, and others than its owner may change it; chmod 600 it, or make "
            "it root's and 640");
}

TEST(SecretFileTest, FilesOfOtherUsersAreRefusedWhateverTheirMode) {
  for (const mode_t mode : {0400, 0440, 0600, 0640, 0644}) {
    EXPECT_EQ(Check(kStranger, mode).message(),
              "the key 'k' is not safe: it belongs to user 1000; chown it to root or to the server's user 10001");
  }
}

TEST(SecretFileTest, OnlySecretFilesAreKeptFromReaders) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  test::WriteSecret(path, "content");
  EXPECT_EQ(ReadAccessFile("the key", path, Secrecy::kSecret).value(), "content");
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(std::string(ReadAccessFile("the key", path, Secrecy::kSecret).status().message()),
              HasSubstr(absl::StrCat("the key '", path, "' is not safe: its mode is 0644")));
  EXPECT_EQ(ReadAccessFile("the certificate", path, Secrecy::kPublic).value(), "content");
}

TEST(SecretFileTest, PublicFilesAreNotEverybodysToChange) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  test::WriteSecret(path, "content");
  ASSERT_EQ(chmod(path.c_str(), 0646), 0);
  EXPECT_EQ(ReadAccessFile("the authority", path, Secrecy::kPublic).status().message(),
            absl::StrCat("the authority '", path,
                         "' is not safe: its mode is 0646, and everybody may change it; chmod o-w it"));
}

TEST(SecretFileTest, TheOwnerIsThatOfTheFileThatALinkLeadsTo) {
  if (geteuid() != kRoot) GTEST_SKIP() << "only root can give files away";
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  const std::string link = directory.path() + "/link";  // as Kubernetes mounts secrets
  test::WriteSecret(path, "content");
  ASSERT_EQ(symlink("file", link.c_str()), 0);
  ASSERT_EQ(lchown(link.c_str(), kStranger, kStranger), 0);
  EXPECT_EQ(ReadAccessFile("the key", link, Secrecy::kSecret).value(), "content");
  ASSERT_EQ(chown(path.c_str(), kStranger, kStranger), 0);
  EXPECT_THAT(std::string(ReadAccessFile("the key", link, Secrecy::kSecret).status().message()),
              HasSubstr("' is not safe: it belongs to user 1000; chown it to root or to the server's user 0"));
}

}  // namespace
}  // namespace gdpcache::rpc
