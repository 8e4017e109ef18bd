#include "client/library/prefill_layout.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdpcache::client {
namespace {

using ::testing::ElementsAre;

CacheGeometry Geometry() {
  CacheGeometry geometry;
  geometry.slots = 4;
  geometry.heads = 2;
  geometry.key_dim = 3;
  geometry.value_dim = 5;
  geometry.num_householder = 2;
  return geometry;
}

PrefillCall Call(std::int64_t tokens) {
  PrefillCall call;
  call.k = {DataType::kBFloat16, {tokens, 2, 3}, nullptr};
  call.u = {DataType::kBFloat16, {tokens, 2, 5}, nullptr};
  call.states = States::kAll;
  call.save_new_value = true;
  call.output_final_state = true;
  return call;
}

TEST(LayOutResultsTest, CountsBoundariesOfRaggedBatches) {
  PrefillCall call = Call(300);
  // With M = 2 and chunks of 64: 0, 1, 63, 64 and 65 tokens.
  const std::vector<std::int32_t> cu_seqlens = {0, 0, 2, 128, 256, 286};
  call.cu_seqlens = cu_seqlens;
  const absl::StatusOr<PrefillLayout> layout = LayOutResults(call, Geometry());
  ASSERT_TRUE(layout.ok());
  EXPECT_THAT(layout->h->shape, ElementsAre(0 + 1 + 1 + 1 + 1, 2, 3, 5));
  EXPECT_EQ(layout->h->dtype, DataType::kBFloat16);
  EXPECT_EQ(layout->h->byte_size, 4 * 30 * 2);
  EXPECT_THAT(layout->v_new->shape, ElementsAre(300, 2, 5));
  EXPECT_THAT(layout->final_state->shape, ElementsAre(5, 2, 3, 5));
  EXPECT_EQ(layout->final_state->dtype, DataType::kFloat32);
}

TEST(LayOutResultsTest, CountsBoundariesOfDenseBatches) {
  PrefillCall call = Call(390);
  call.batch = 3;
  call.num_householder = 1;
  call.chunk_size = 16;
  call.states_dtype = DataType::kFloat32;
  const absl::StatusOr<PrefillLayout> layout = LayOutResults(call, Geometry());
  ASSERT_TRUE(layout.ok());
  EXPECT_THAT(layout->h->shape, ElementsAre(3 * 9, 2, 3, 5));
  EXPECT_EQ(layout->h->dtype, DataType::kFloat32);
  EXPECT_THAT(layout->final_state->shape, ElementsAre(3, 2, 3, 5));
}

TEST(LayOutResultsTest, CountsSelectedBoundaries) {
  PrefillCall call = Call(300);
  const std::vector<BoundaryRef> selected = {{0, 0}, {0, 2}};
  call.states = States::kSelected;
  call.selected = selected;
  EXPECT_THAT(LayOutResults(call, Geometry())->h->shape, ElementsAre(2, 2, 3, 5));
}

TEST(LayOutResultsTest, HasOnlyWhatIsAskedFor) {
  PrefillCall call = Call(300);
  call.states = States::kNone;
  call.save_new_value = false;
  call.output_final_state = false;
  const absl::StatusOr<PrefillLayout> layout = LayOutResults(call, Geometry());
  EXPECT_FALSE(layout->h || layout->v_new || layout->final_state);
}

TEST(LayOutResultsTest, ExpectsNothingOfMalformedCalls) {
  const std::vector<std::vector<std::int64_t>> malformed = {
      {0, 301}, {0, 200, 100}, {-2, 10}, {INT64_MIN, INT64_MAX}, {0, INT64_MAX}};
  for (const std::vector<std::int64_t>& cu_seqlens : malformed) {
    PrefillCall call = Call(300);
    call.cu_seqlens = cu_seqlens;
    const absl::StatusOr<PrefillLayout> layout = LayOutResults(call, Geometry());
    ASSERT_TRUE(layout.ok());
    EXPECT_FALSE(layout->h || layout->v_new || layout->final_state);
  }
  for (const auto& change : std::vector<void (*)(PrefillCall*)>{
           [](PrefillCall* call) { call->batch = -1; }, [](PrefillCall* call) { call->chunk_size = -64; },
           [](PrefillCall* call) { call->num_householder = -1; }, [](PrefillCall* call) { call->u.shape = {300}; },
           [](PrefillCall* call) {
             call->u.shape = {INT64_MAX, INT64_MAX, 2, 5};
           }}) {
    PrefillCall call = Call(300);
    change(&call);
    const absl::StatusOr<PrefillLayout> layout = LayOutResults(call, Geometry());
    ASSERT_TRUE(layout.ok());
    EXPECT_FALSE(layout->h || layout->v_new || layout->final_state);
  }
}

TEST(LayOutResultsTest, RefusesResultsBeyondAnySize) {
  PrefillCall call = Call(300);
  call.batch = INT64_MAX;
  EXPECT_EQ(LayOutResults(call, Geometry()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gdpcache::client
