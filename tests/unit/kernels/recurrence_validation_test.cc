#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/recurrence.h"
#include "tests/unit/kernels/backend_test.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;

/// A launch of one sequence, valid until a test spoils it. Its pointers are never followed.
struct Launch {
  kernels::RecurrenceShape shape{.heads = 2, .key_dim = 16, .value_dim = 8, .num_householder = 2};
  std::vector<float> memory = std::vector<float>(512);
  std::vector<kernels::BoundaryStore> boundaries = {{0, {memory.data(), DataType::kFloat32, 128}},
                                                    {1, {memory.data(), DataType::kFloat32, 128}}};
  kernels::Sequence sequence;

  Launch() {
    sequence.length = 130;
    sequence.k = sequence.w = sequence.u = memory.data();
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  absl::Status Validate() {
    sequence.boundaries = boundaries;
    return kernels::ValidateRecurrence(shape, {sequence});
  }
};

TEST(ValidateRecurrenceTest, AcceptsAWellFormedLaunch) {
  Launch launch;
  launch.sequence.slot = {launch.memory.data(), DataType::kBFloat16, 128};
  EXPECT_TRUE(launch.Validate().ok()) << launch.Validate();
}

TEST(ValidateRecurrenceTest, AcceptsAnEmptySequenceWithoutTensors) {
  Launch launch;
  launch.sequence = {};
  launch.boundaries.clear();
  EXPECT_TRUE(launch.Validate().ok()) << launch.Validate();
}

TEST(ValidateRecurrenceTest, ReadsNoHeadStrideOfASingleHead) {
  Launch launch;
  launch.shape.heads = 1;
  launch.sequence.slot = {launch.memory.data(), DataType::kFloat32, 0};
  EXPECT_TRUE(launch.Validate().ok()) << launch.Validate();
}

TEST(ValidateRecurrenceTest, NamesWhatIsWrongWithBothValues) {
  const struct {
    std::function<void(Launch&)> spoil;
    const char* message;
  } cases[] = {
      {[](Launch& l) { l.shape.heads = 0; }, "heads is 0"},
      {[](Launch& l) { l.shape.key_dim = 257; }, "key_dim is 257; it must be from 1 to 256"},
      {[](Launch& l) { l.shape.key_dim = 0; }, "key_dim is 0"},
      {[](Launch& l) { l.shape.value_dim = 1025; }, "value_dim is 1025; it must be from 1 to 1024"},
      {[](Launch& l) { l.shape.value_dim = -1; }, "value_dim is -1"},
      {[](Launch& l) { l.shape.num_householder = 0; }, "num_householder is 0"},
      {[](Launch& l) { l.shape.chunk_size = 48; }, "chunk_size is 48"},
      {[](Launch& l) { l.shape.chunk_size = 0; }, "chunk_size is 0"},
      {[](Launch& l) { l.shape.num_householder = std::int64_t{1} << 62; }, "length is 130"},
      {[](Launch& l) { l.sequence.length = -2; }, "sequences[0].length is -2"},
      {[](Launch& l) { l.sequence.length = 131; }, "length is 131; it must be a multiple of num_householder 2"},
      {[](Launch& l) { l.sequence.w = nullptr; }, "sequences[0]: k, w or u is missing for 130 expanded tokens"},
      {[](Launch& l) { l.boundaries[1].boundary = 2; },
       "sequences[0].boundaries[1] is 2; it must be at least 0 and below 2"},
      {[](Launch& l) { l.boundaries[0].boundary = -1; }, "boundaries[0] is -1"},
      {[](Launch& l) { std::swap(l.boundaries[0], l.boundaries[1]); }, "boundaries[1] is 0; it must be at least 1"},
      {[](Launch& l) { l.boundaries[1].destination.data = nullptr; }, "boundaries[1] has no destination"},
      {[](Launch& l) { l.boundaries[1].destination.head_stride = 127; },
       "boundaries[1].destination.head_stride is 127; a head has 128 elements"},
      {[](Launch& l) {
         l.sequence.slot = {l.memory.data(), DataType::kFloat32, 0};
       },
       "sequences[0].slot.head_stride is 0"},
      {[](Launch& l) {
         l.sequence.initial_state = {l.memory.data(), DataType::kFloat32, -128};
       },
       "sequences[0].initial_state.head_stride is -128"},
      {[](Launch& l) {
         l.sequence.final_state = {l.memory.data(), DataType::kFloat32, 1};
       },
       "sequences[0].final_state.head_stride is 1"},
  };
  for (const auto& spoiled : cases) {
    Launch launch;
    spoiled.spoil(launch);
    const absl::Status status = launch.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spoiled.message;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(spoiled.message));
  }
}

class BackendValidationTest : public BackendTest {};
GDPCACHE_INSTANTIATE_BACKEND_TESTS(BackendValidationTest);

TEST_P(BackendValidationTest, BackendsRefuseWhatIsInvalidBeforeTouchingAnything) {
  Launch launch;
  launch.shape.key_dim = 257;
  EXPECT_EQ(backend().RunRecurrence(launch.shape, {launch.sequence}, stream()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gdpcache::testing
