#include "server/config/byte_size.h"

#include <string>

#include "gtest/gtest.h"

namespace gdpcache::config {
namespace {

TEST(ByteSizeTest, ReadsWholeNumbersWithBinaryUnits) {
  const std::pair<const char*, std::int64_t> cases[] = {
      {"0", 0},
      {"1000", 1000},
      {"1KiB", 1024},
      {"16MiB", std::int64_t{16} << 20},
      {"3 GiB", std::int64_t{3} << 30},
      {"2TiB", std::int64_t{2} << 40},
      {"9223372036854775807", 9223372036854775807},
  };
  for (const auto& [text, bytes] : cases) {
    ByteSize size;
    std::string error;
    EXPECT_TRUE(AbslParseFlag(text, &size, &error)) << text;
    EXPECT_EQ(size.bytes, bytes) << text;
  }
}

TEST(ByteSizeTest, RefusesEverythingElse) {
  for (const char* text : {"", "KiB", "-1", "-1KiB", "1.5GiB", "5GB", "5gib", "5G", "0x10", "1e9",
                           "9223372036854775808", "8388608TiB", "1KiBKiB"}) {
    ByteSize size;
    std::string error;
    EXPECT_FALSE(AbslParseFlag(text, &size, &error)) << text;
  }
}

TEST(ByteSizeTest, WritesTheLargestUnitThatDivides) {
  EXPECT_EQ(AbslUnparseFlag(ByteSize{0}), "0");
  EXPECT_EQ(AbslUnparseFlag(ByteSize{1000}), "1000");
  EXPECT_EQ(AbslUnparseFlag(ByteSize{1536}), "1536");
  EXPECT_EQ(AbslUnparseFlag(ByteSize{std::int64_t{16} << 20}), "16MiB");
}

}  // namespace
}  // namespace gdpcache::config
