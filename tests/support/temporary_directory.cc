#include "tests/support/temporary_directory.h"

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX

#include <filesystem>
#include <system_error>

#include "gtest/gtest.h"

namespace gdpcache::test {

TemporaryDirectory::TemporaryDirectory() : path_("/tmp/gdpcache-test-XXXXXX") {
  EXPECT_NE(mkdtemp(path_.data()), nullptr);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  EXPECT_FALSE(error) << path_ << ": " << error.message();
}

}  // namespace gdpcache::test
