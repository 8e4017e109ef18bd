#include "client/command/text.h"

#include <sstream>

#include "gtest/gtest.h"

namespace gdpcache::command {
namespace {

TEST(TableTest, AlignsColumns) {
  Table table({"A", "LONG NAME", "C"});
  table.Add({"1", "x", "y"});
  table.Add({"100", "", "z"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(),
            "A    LONG NAME  C\n"
            "1    x          y\n"
            "100             z\n");
}

TEST(TableTest, NobodyElsesTextReachesTheTerminalAsACommand) {
  Table table({"CLIENT", "SLOT"});
  table.Add({"\x1b[2J\nx\x7f\xc2\x9b", "1"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(),
            "CLIENT     SLOT\n"
            "?[2J?x???  1\n");
}

TEST(FormatBytesTest, ChoosesUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(std::int64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(FormatBytes(INT64_MAX), "8.0 EiB");
}

TEST(PrintJsonTest, TakesStringsThatAreNotUtf8) {
  std::ostringstream out;
  PrintJson({{"name", "\xff"}}, out);
  EXPECT_EQ(out.str(), "{\n  \"name\": \"\xEF\xBF\xBD\"\n}\n");
}

}  // namespace
}  // namespace gdpcache::command
