#include "server/cache/geometry.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

Geometry Usual() {
  Geometry geometry;
  geometry.layers = 2;
  geometry.slots = 3;
  geometry.heads = 4;
  geometry.key_dim = 128;
  geometry.value_dim = 64;
  return geometry;
}

TEST(GeometryTest, SizesFollowTheShape) {
  Geometry geometry = Usual();
  geometry.auxiliary_bytes = 10;
  EXPECT_TRUE(geometry.Validate().ok());
  EXPECT_EQ(geometry.state_elements(), 4 * 128 * 64);
  EXPECT_EQ(geometry.state_bytes(), 4 * 128 * 64 * 4);
  EXPECT_EQ(geometry.total_bytes(), 2 * 3 * (4 * 128 * 64 * 4 + 10));
  EXPECT_EQ(geometry.memory_charge(), geometry.total_bytes());
  geometry.state_dtype = kernels::DataType::kBFloat16;
  EXPECT_EQ(geometry.state_bytes(), 4 * 128 * 64 * 2);
}

struct OutOfRange {
  std::int64_t Geometry::*field;
  std::string name;
  std::int64_t least;
  std::int64_t most;
};

class GeometryRangeTest : public ::testing::TestWithParam<OutOfRange> {};

TEST_P(GeometryRangeTest, EachFieldHasItsLimits) {
  const OutOfRange& range = GetParam();
  Geometry geometry = Usual();
  for (const std::int64_t value : {range.least, range.most}) {
    geometry.*range.field = value;
    EXPECT_TRUE(geometry.Validate().ok()) << range.name << " " << value << ": " << geometry.Validate();
  }
  for (const std::int64_t value : {range.least - 1, range.most + 1, std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max(), std::int64_t{1} << 62}) {
    geometry.*range.field = value;
    const absl::Status status = geometry.Validate();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << range.name << " " << value;
    EXPECT_EQ(FieldViolationOf(status)->field, "geometry." + range.name);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(std::to_string(value)));
  }
}

INSTANTIATE_TEST_SUITE_P(Fields, GeometryRangeTest,
                         ::testing::Values(OutOfRange{&Geometry::layers, "layers", 1, 65'536},
                                           OutOfRange{&Geometry::slots, "slots", 1, 16'777'216},
                                           OutOfRange{&Geometry::heads, "heads", 1, 1'024},
                                           OutOfRange{&Geometry::key_dim, "key_dim", 1, 256},
                                           OutOfRange{&Geometry::value_dim, "value_dim", 1, 1'024},
                                           OutOfRange{&Geometry::num_householder, "num_householder", 1, 64},
                                           OutOfRange{&Geometry::auxiliary_bytes, "auxiliary_bytes", 0,
                                                      std::int64_t{1} << 30}),
                         [](const auto& field) { return field.param.name; });

TEST(GeometryTest, TheProductOfFieldsInRangeMayStillBeTooLarge) {
  Geometry geometry;
  geometry.layers = 65'536;
  geometry.slots = 16'777'216;
  geometry.heads = 1'024;
  geometry.key_dim = 256;
  geometry.value_dim = 1'024;
  geometry.auxiliary_bytes = std::int64_t{1} << 30;
  const absl::Status status = geometry.Validate();
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldViolationOf(status)->field, "geometry");
  geometry.auxiliary_bytes = 0;
  geometry.heads = 1;
  geometry.key_dim = 1;
  EXPECT_TRUE(geometry.Validate().ok()) << "2^52 bytes";
}

TEST(GeometryTest, AHostOfTinyStatesIsChargedForItsBookkeeping) {
  Geometry geometry;
  geometry.layers = 1'000;
  geometry.slots = 1'000;
  geometry.heads = 1;
  geometry.key_dim = 1;
  geometry.value_dim = 1;
  geometry.state_dtype = kernels::DataType::kBFloat16;
  EXPECT_EQ(geometry.total_bytes(), 2'000'000);
  EXPECT_GT(geometry.memory_charge(), 8 * 1'000'000) << "the positions alone";
}

TEST(GeometryTest, DifferencesNameEachFieldAndBothValues) {
  const Geometry geometry = Usual();
  Geometry other = geometry;
  EXPECT_EQ(DescribeDifference(geometry, other), "");
  other.heads = 16;
  other.state_dtype = kernels::DataType::kFloat16;
  EXPECT_EQ(DescribeDifference(geometry, other), "heads is 4, not 16; state_dtype is float32, not float16");
}

}  // namespace
}  // namespace gdpcache::cache
