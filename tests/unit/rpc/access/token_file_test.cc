#include "server/rpc/access/token_file.h"

#include <sys/stat.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "0123456789abcdef";
constexpr char kOther[] = "fedcba9876543210";

class TokenFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& text) {
    test::WriteSecret(path_, text);
    return TokenFile::Open(path_, {"engine", "operator"});
  }

  std::string ErrorOf(const std::string& text) {
    const absl::Status status = Open(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(kToken)));
    return std::string(status.message());
  }

  test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/tokens";
};

TEST_F(TokenFileTest, TokensStandForNames) {
  const auto file =
      Open(absl::StrCat("# comment\n\n  ", kToken, " engine  \r\n", kOther, "\toperator\nanother-0123456789 engine"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->count(), 3u);
  EXPECT_EQ((*file)->NameOf(kToken), "engine");
  EXPECT_EQ((*file)->NameOf("another-0123456789"), "engine");
  EXPECT_EQ((*file)->NameOf(kOther), "operator");
  for (const char* wrong : {"", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeg", "engine", "# comment"}) {
    EXPECT_EQ((*file)->NameOf(wrong), std::nullopt) << wrong;
  }
}

TEST_F(TokenFileTest, ErrorsNameFileAndLineButNoToken) {
  EXPECT_THAT(ErrorOf(absl::StrCat("#\n", kToken)), HasSubstr("line 2: it has 1 words; it must be TOKEN NAME"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kToken, " engine too")), HasSubstr("line 1: it has 3 words"));
  EXPECT_THAT(ErrorOf("0123456789abcde engine"), HasSubstr("line 1: the token has 15 characters; it must have 16 to"));
  EXPECT_THAT(ErrorOf(std::string(5'000, 'a') + " engine"), HasSubstr("the token has 5000 characters"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kToken, "! engine")), HasSubstr("the token may have letters, digits and"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kToken, " stranger")), HasSubstr("line 1: the name is 'stranger'; no identity"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kToken, " engine\n", kToken, " operator")),
              HasSubstr("line 2: the token stands on"));
}

TEST_F(TokenFileTest, WhatOthersCanReadIsRefused) {
  ASSERT_TRUE(Open(absl::StrCat(kToken, " engine")).ok());
  chmod(path_.c_str(), 0604);
  const absl::Status status = TokenFile::Open(path_, {"engine"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("the token file '", path_, "' is not safe: its mode is ")));
  chmod(path_.c_str(), 0600);
  EXPECT_TRUE(TokenFile::Open(path_, {"engine"}).ok());
}

TEST_F(TokenFileTest, OnlyRegularFilesOfReasonableSizeAreRead) {
  EXPECT_EQ(TokenFile::Open(path_, {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(TokenFile::Open(directory_.path(), {}).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(TokenFile::Open(path_, {}).status().code(), absl::StatusCode::kFailedPrecondition) << "nor waited for";
  EXPECT_EQ(Open(std::string(2 << 20, '#')).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TokenFileTest, ChangesAreSeenAndMistakesChangeNothing) {
  const auto file = Open(absl::StrCat(kToken, " engine"));
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE((*file)->Refresh().value()) << "nothing has changed";
  test::WriteSecret(path_, absl::StrCat(kOther, " engine"));
  EXPECT_TRUE((*file)->Refresh().value());
  EXPECT_EQ((*file)->NameOf(kToken), std::nullopt);
  EXPECT_EQ((*file)->NameOf(kOther), "engine");
  test::WriteSecret(path_, "short engine");
  EXPECT_FALSE((*file)->Refresh().ok());
  EXPECT_EQ((*file)->NameOf(kOther), "engine");
  remove(path_.c_str());
  EXPECT_EQ((*file)->Refresh().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*file)->NameOf(kOther), "engine");
}

}  // namespace
}  // namespace gdpcache::rpc
