// Launches of many heads at once: backends may divide them otherwise than those of few, with the same bits.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/kernels/backend_test.h"
#include "tests/unit/kernels/problem_runner.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;

class WideLaunchTest : public BackendTest {};
GDPCACHE_INSTANTIATE_BACKEND_TESTS(WideLaunchTest);

/// The first `count` heads of a [rows, heads, ...] tensor.
HostTensor FirstHeads(const HostTensor& tensor, std::int64_t count) {
  if (!tensor.present()) return tensor;
  HostTensor part = tensor;
  part.shape[1] = count;
  const auto head_bytes =
      tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]) / static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t from_row = head_bytes * static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t to_row = head_bytes * static_cast<std::size_t>(count);
  part.bytes.resize(to_row * static_cast<std::size_t>(tensor.shape[0]));
  for (std::size_t row = 0; row < static_cast<std::size_t>(tensor.shape[0]); ++row) {
    std::memcpy(part.bytes.data() + row * to_row, tensor.bytes.data() + row * from_row, to_row);
  }
  return part;
}

Problem FirstHeads(const Problem& problem, std::int64_t count) {
  Problem part = problem;
  part.shape.heads = count;
  for (HostTensor* tensor : {&part.k, &part.w, &part.u, &part.g, &part.state, &part.initial_state}) {
    *tensor = FirstHeads(*tensor, count);
  }
  return part;
}

void ExpectFirstHeadsAlone(kernels::Backend& backend, const ProblemSpec& spec, std::uint64_t seed) {
  constexpr std::int64_t kFew = 2;
  const Problem problem = RandomProblem(spec, seed);
  const Results many = RunProblem(backend, problem);
  const Results few = RunProblem(backend, FirstHeads(problem, kFew));
  EXPECT_TRUE(FirstHeads(many.h, kFew).bytes == few.h.bytes) << "h differs";
  EXPECT_TRUE(FirstHeads(many.v_new, kFew).bytes == few.v_new.bytes) << "v_new differs";
  EXPECT_TRUE(FirstHeads(many.state, kFew).bytes == few.state.bytes) << "state differs";
  EXPECT_TRUE(FirstHeads(many.final_state, kFew).bytes == few.final_state.bytes) << "final_state differs";
}

ProblemSpec Spec(std::int64_t heads, std::int64_t key_dim, std::int64_t value_dim, std::vector<std::int64_t> lengths) {
  ProblemSpec spec;
  spec.shape = {.heads = heads,
                .key_dim = key_dim,
                .value_dim = value_dim,
                .num_householder = 1,
                .chunk_size = 64,
                .input_dtype = DataType::kBFloat16};
  spec.lengths = std::move(lengths);
  return spec;
}

TEST_P(WideLaunchTest, LongSequencesGiveTheBitsOfFewHeads) {
  for (const std::int64_t dim : {64, 128}) {
    for (const auto states_dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
      ProblemSpec spec = Spec(40, dim, dim, {200, 65});
      spec.states_dtype = states_dtype;
      ExpectFirstHeadsAlone(backend(), spec, 21);
    }
  }
}

TEST_P(WideLaunchTest, RareBoundariesGiveTheBitsOfFewHeads) {
  for (const std::int64_t heads : {16, 40}) {
    for (const auto states_dtype : {DataType::kFloat32, DataType::kBFloat16}) {
      ProblemSpec spec = Spec(heads, 128, 128, {264, 2});
      spec.shape.num_householder = 2;
      spec.states_dtype = states_dtype;
      ExpectFirstHeadsAlone(backend(), spec, 27);
    }
  }
}

TEST_P(WideLaunchTest, ShortSequencesGiveTheBitsOfFewHeads) {
  for (const auto state_dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    ProblemSpec spec = Spec(16, 128, 128, {1, 64, 130, 2, 0, 1, 1, 66});
    spec.state_dtype = state_dtype;
    ExpectFirstHeadsAlone(backend(), spec, 22);
  }
}

TEST_P(WideLaunchTest, SequencesOfOneChunkGiveTheBitsOfFewHeads) {
  for (const auto states_dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    ProblemSpec spec = Spec(16, 128, 128, {1, 64, 8, 9, 0, 33, 1, 63});
    spec.states_dtype = states_dtype;
    ExpectFirstHeadsAlone(backend(), spec, 26);
  }
}

TEST_P(WideLaunchTest, PartialTilesGiveTheBitsOfFewHeads) {
  ExpectFirstHeadsAlone(backend(), Spec(40, 96, 80, {130, 3}), 23);
  ExpectFirstHeadsAlone(backend(), Spec(40, 40, 104, {130, 3}), 24);
}

TEST_P(WideLaunchTest, SequencesTimesHeadsBeyondSixteenBitsAreOrdinary) {
  ProblemSpec spec = Spec(64, 8, 8, std::vector<std::int64_t>(1100, 1));
  spec.spare_slots = 0;
  ExpectFirstHeadsAlone(backend(), spec, 25);
}

}  // namespace
}  // namespace gdpcache::testing
