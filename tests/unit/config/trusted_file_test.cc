#include "server/config/trusted_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::config {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kRoot = 0;
constexpr uid_t kServer = 10'001;
constexpr uid_t kStranger = 1'000;

absl::Status Check(uid_t owner, mode_t mode) {
  return CheckTrust("the key 'k'", owner, mode, kServer, Secrecy::kSecret);
}

absl::Status CheckPublic(uid_t owner, mode_t mode) {
  return CheckTrust("the file 'f'", owner, mode, kServer, Secrecy::kPublic);
}

TEST(TrustedFileTest, RootsFilesMayBeReadByAGroup) {
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

TEST(TrustedFileTest, TheServersOwnFilesMayBeReadByNobodyElse) {
  for (const mode_t mode : {0400, 0600, 0700}) EXPECT_TRUE(Check(kServer, mode).ok()) << std::oct << mode;
  for (const mode_t mode : {0440, 0640, 0620, 0610, 0604, 0602, 0601, 0666}) {
    EXPECT_EQ(Check(kServer, mode).code(), absl::StatusCode::kFailedPrecondition) << std::oct << mode;
  }
  EXPECT_EQ(Check(kServer, S_IFREG | 0620).message(),
            "the key 'k' is not safe: its mode is 0620, and others than its owner may change it; chmod 600 it, or make "
            "it root's and 640");
}

TEST(TrustedFileTest, FilesOfOtherUsersAreRefusedWhateverTheirMode) {
  for (const mode_t mode : {0400, 0440, 0600, 0640, 0644}) {
    EXPECT_EQ(Check(kStranger, mode).message(),
              "the key 'k' is not safe: it belongs to user 1000; chown it to root or to the server's user 10001");
    EXPECT_EQ(CheckPublic(kStranger, mode).message(),
              "the file 'f' is not safe: it belongs to user 1000; chown it to root or to the server's user 10001");
  }
}

TEST(TrustedFileTest, PublicFilesMayBeReadByEverybodyAndChangedByTheGroupThatTheirOwnerSays) {
  for (const uid_t owner : {kRoot, kServer}) {
    // A ConfigMap, one in a volume of an fsGroup, and a file of a user whose umask is 002.
    for (const mode_t mode : {0400, 0440, 0644, 0640, 0660, 0664, S_IFREG | 0664, 0755}) {
      EXPECT_TRUE(CheckPublic(owner, mode).ok()) << std::oct << mode;
    }
    for (const mode_t mode : {0602, 0646, 0666, 0777}) {
      EXPECT_EQ(CheckPublic(owner, mode).code(), absl::StatusCode::kFailedPrecondition) << std::oct << mode;
    }
  }
  EXPECT_EQ(CheckPublic(kRoot, S_IFREG | 0646).message(),
            "the file 'f' is not safe: its mode is 0646, and everybody may change it; chmod o-w it");
}

TEST(TrustedFileTest, OnlySecretFilesAreKeptFromReaders) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  test::WriteSecret(path, "content");
  EXPECT_EQ(ReadTrustedFile("the key", path, Secrecy::kSecret).value(), "content");
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(std::string(ReadTrustedFile("the key", path, Secrecy::kSecret).status().message()),
              HasSubstr(absl::StrCat("the key '", path, "' is not safe: its mode is 0644")));
  EXPECT_EQ(ReadTrustedFile("the certificate", path, Secrecy::kPublic).value(), "content");
  ASSERT_EQ(chmod(path.c_str(), 0646), 0);
  EXPECT_THAT(std::string(ReadTrustedFile("the authority", path, Secrecy::kPublic).status().message()),
              HasSubstr(absl::StrCat("the authority '", path, "' is not safe: its mode is 0646")));
}

TEST(TrustedFileTest, TheOwnerIsThatOfTheFileThatALinkLeadsTo) {
  if (geteuid() != kRoot) GTEST_SKIP() << "only root can give files away";
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  const std::string link = directory.path() + "/link";  // as Kubernetes mounts secrets
  test::WriteSecret(path, "content");
  ASSERT_EQ(symlink("file", link.c_str()), 0);
  ASSERT_EQ(lchown(link.c_str(), kStranger, kStranger), 0);
  EXPECT_EQ(ReadTrustedFile("the key", link, Secrecy::kSecret).value(), "content");
  ASSERT_EQ(chown(path.c_str(), kStranger, kStranger), 0);
  EXPECT_THAT(std::string(ReadTrustedFile("the key", link, Secrecy::kSecret).status().message()),
              HasSubstr("' is not safe: it belongs to user 1000; chown it to root or to the server's user 0"));
  EXPECT_THAT(std::string(ReadTrustedFile("the certificate", link, Secrecy::kPublic).status().message()),
              HasSubstr("' is not safe: it belongs to user 1000; chown it to root or to the server's user 0"));
}

}  // namespace
}  // namespace gdpcache::config
