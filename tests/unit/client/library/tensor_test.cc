#include "gdpcache/tensor.h"

#include <vector>

#include "gtest/gtest.h"

namespace gdpcache {
namespace {

TEST(ByteSizeTest, MultipliesAndGuards) {
  EXPECT_EQ(*ByteSize(DataType::kFloat32, {2, 3}), 24);
  EXPECT_EQ(*ByteSize(DataType::kBFloat16, {}), 2);
  EXPECT_EQ(*ByteSize(DataType::kUInt8, {std::int64_t{1} << 62}), std::int64_t{1} << 62);
  EXPECT_EQ(*ByteSize(DataType::kFloat32, {INT64_MAX, 0, INT64_MAX}), 0);
  EXPECT_FALSE(ByteSize(DataType::kFloat16, {std::int64_t{1} << 62}).ok());
  EXPECT_FALSE(ByteSize(DataType::kUInt8, {INT64_MAX, INT64_MAX}).ok());
  EXPECT_FALSE(ByteSize(DataType::kUInt8, {0, -1}).ok());
}

TEST(OwnedTensorTest, AllocatesOrSaysWhyNot) {
  const absl::StatusOr<OwnedTensor> tensor = OwnedTensor::Allocate(DataType::kFloat32, {2, 3});
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->As<float>().size(), 6);
  EXPECT_EQ(tensor->view().data, tensor->data());
  EXPECT_NE(OwnedTensor::Allocate(DataType::kFloat32, {0})->data(), nullptr);
  EXPECT_EQ(OwnedTensor::Allocate(DataType::kUInt8, {-1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(IndexSpanTest, ReadsBothWidths) {
  const std::vector<std::int32_t> narrow = {0, -1, 7};
  const std::vector<std::int64_t> wide = {0, -1, std::int64_t{1} << 40};
  const IndexSpan from_narrow = narrow;
  const IndexSpan from_wide = wide;
  EXPECT_EQ(from_narrow.size(), 3);
  EXPECT_EQ(from_narrow[1], -1);
  EXPECT_EQ(from_narrow[2], 7);
  EXPECT_EQ(from_wide[2], std::int64_t{1} << 40);
  EXPECT_TRUE(IndexSpan().empty());
}

}  // namespace
}  // namespace gdpcache
