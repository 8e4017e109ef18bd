#include "client/command/bench/options.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdpcache::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

TEST(BenchOptionsTest, NamesFollowTheLengthsAndTheClients) {
  BenchOptions options;
  options.tokens = {3};
  options.clients = {5};
  const std::vector<std::string> names = MeasurementNames(options);
  EXPECT_THAT(names, IsSupersetOf({"kernel/3", "prefill/3/unary", "prefill/3/stream", "prefill/3/shared", "decode/5",
                                   "slots/copy", "snapshots/lookup"}));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(BenchOptionsTest, OnlyPicksByPartsOfNames) {
  BenchOptions options;
  EXPECT_TRUE(Picked(options, "slots/copy"));
  options.only = {"restore", "prefill/1/"};
  EXPECT_TRUE(Picked(options, "snapshots/restore/device"));
  EXPECT_TRUE(Picked(options, "prefill/1/unary"));
  EXPECT_FALSE(Picked(options, "slots/copy"));
}

TEST(BenchOptionsTest, ModelsAreFourNumbersWithinTheServersLimits) {
  CacheGeometry model;
  EXPECT_EQ(ParseModel("2x4x8x16", &model), "");
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.heads, 4);
  EXPECT_EQ(model.key_dim, 8);
  EXPECT_EQ(model.value_dim, 16);
  for (const char* text : {"", "2x4x8", "2x4x8x16x1", "2x4x8x", "axbxcxd", "0x4x8x16", "-1x4x8x16"}) {
    EXPECT_NE(ParseModel(text, &model), "") << text;
  }
  EXPECT_THAT(ParseModel("2x4x257x16", &model), HasSubstr("the key dim must be between 1 and 256"));
}

}  // namespace
}  // namespace gdpcache::bench
