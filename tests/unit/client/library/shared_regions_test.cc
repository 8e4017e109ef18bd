#include "client/library/shared_regions.h"

#include <cstddef>

#include "gtest/gtest.h"

namespace gdpcache::client {
namespace {

class SharedRegionsTest : public ::testing::Test {
 protected:
  SharedRegionsTest() {
    regions_.Add(memory_ + 64, 64, "first");
    regions_.Add(memory_ + 128, 32, "second");
  }

  std::string Find(std::int64_t begin, std::int64_t size, std::int64_t alignment = 1) const {
    const auto place = regions_.Find(memory_ + begin, size, alignment);
    return place ? place->region() + "@" + std::to_string(place->offset()) : "none";
  }

  alignas(64) std::byte memory_[256];
  SharedRegions regions_;
};

TEST_F(SharedRegionsTest, FindsWhatLiesInsideOneRegion) {
  EXPECT_EQ(Find(64, 64), "first@0");
  EXPECT_EQ(Find(70, 10), "first@6");
  EXPECT_EQ(Find(128, 32), "second@0");
  EXPECT_EQ(Find(159, 1), "second@31");
}

TEST_F(SharedRegionsTest, FindsNothingThatReachesBeyond) {
  EXPECT_EQ(Find(63, 2), "none");
  EXPECT_EQ(Find(100, 29), "none") << "no tensor spans two regions, even where they touch";
  EXPECT_EQ(Find(128, 33), "none");
  EXPECT_EQ(Find(161, 1), "none");
  EXPECT_EQ(Find(0, 1), "none");
  EXPECT_EQ(Find(70, std::int64_t{1} << 62), "none");
}

TEST_F(SharedRegionsTest, FindsNothingThatAServerWouldRefuseAsUnaligned) {
  EXPECT_EQ(Find(68, 8, 4), "first@4");
  EXPECT_EQ(Find(66, 8, 4), "none");
}

TEST_F(SharedRegionsTest, ForgetsWhatIsRemovedAndNeverGivesANameTwice) {
  regions_.Remove(memory_ + 64);
  EXPECT_EQ(Find(64, 1), "none");
  const std::string name = regions_.NewName();
  EXPECT_NE(regions_.NewName(), name);
}

}  // namespace
}  // namespace gdpcache::client
