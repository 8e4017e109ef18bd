#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/golden/golden_batch.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/engine/engine_world.h"
#include "tests/unit/kernels/problem_runner.h"

namespace gdpcache::engine {
namespace {

using testing::Outputs;
using testing::Problem;

/// What the kernel alone makes of the problem.
Outputs RunAlone(World& world, const Problem& problem) { return testing::RunProblem(*world.cpu, problem); }

enum class How { kUnary, kStreamed };

absl::StatusOr<Ran> Run(const World& world, const std::shared_ptr<cache::Session>& session, const Problem& problem,
                        How how, std::uint64_t seed) {
  return how == How::kUnary ? RunUnary(world, session, problem, RequestOf(problem, TensorTransport::kInline))
                            : RunStreamed(world, session, problem, RequestOf(problem, TensorTransport::kStream), seed);
}

/// Runs the problem through the engine on slots as it says and compares every bit with the kernel alone.
void ExpectSameAsAlone(World& world, const Problem& problem, How how, std::uint64_t seed) {
  const Outputs alone = RunAlone(world, problem);
  const auto session = world.OpenSession(GeometryOf(problem, 2));
  const cache::Cache& cache = *session->cache();
  if (problem.state.present()) LoadState(cache, 0, problem.state);
  const absl::StatusOr<Ran> ran = Run(world, session, problem, how, seed);
  ASSERT_TRUE(ran.ok()) << ran.status();
  EXPECT_TRUE(ran->outputs.h.bytes == alone.h.bytes);
  EXPECT_TRUE(ran->outputs.v_new.bytes == alone.v_new.bytes);
  EXPECT_TRUE(ran->outputs.final_state.bytes == alone.final_state.bytes);
  if (problem.state.present()) {
    EXPECT_TRUE(StoreState(cache, 0).bytes == alone.state.bytes);
  }
  for (std::int64_t n = 0; n < problem.sequences(); ++n) {
    const std::int64_t slot = problem.state_indices.empty() ? -1 : problem.state_indices[n];
    const std::int64_t tokens = (problem.cu_seqlens[n + 1] - problem.cu_seqlens[n]) / problem.shape.num_householder;
    EXPECT_EQ(ran->result.positions[n], slot < 0 ? -1 : tokens);
  }
  EXPECT_EQ(world.engine->staging().used(), 0);
  EXPECT_EQ(world.engine->device_staging().used(), 0);
}

class GoldenPrefill : public ::testing::TestWithParam<std::tuple<std::string, Memory>> {};
INSTANTIATE_TEST_SUITE_P(Batches, GoldenPrefill,
                         ::testing::Combine(::testing::ValuesIn(testing::GoldenBatchNames()),
                                            ::testing::Values(Memory::kUnified, Memory::kSeparate)),
                         [](const auto& batch) {
                           return std::get<0>(batch.param) +
                                  (std::get<1>(batch.param) == Memory::kUnified ? "" : "_separate_memory");
                         });

TEST_P(GoldenPrefill, UnaryAndStreamsInSmallAndLargeSegmentsEqualTheKernelBitForBit) {
  const auto& [name, memory] = GetParam();
  const auto batch = testing::LoadGoldenBatch(name);
  ASSERT_TRUE(batch.ok()) << batch.status();
  World world({}, memory);
  ExpectSameAsAlone(world, batch->problem, How::kUnary, 0);
  ExpectSameAsAlone(world, batch->problem, How::kStreamed, 1);
  World small({.segment_bytes = 100'000}, memory);
  ExpectSameAsAlone(small, batch->problem, How::kStreamed, 2);
}

class RandomPrefill : public ::testing::TestWithParam<Memory> {};
INSTANTIATE_TEST_SUITE_P(Memories, RandomPrefill, ::testing::Values(Memory::kUnified, Memory::kSeparate));

TEST_P(RandomPrefill, InTinySegmentsEqualsTheKernelBitForBit) {
  World world({.segment_bytes = 5'000}, GetParam());
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    ExpectSameAsAlone(world, testing::RandomSmallProblem(seed), How::kStreamed, seed);
    ExpectSameAsAlone(world, testing::RandomSmallProblem(seed), How::kUnary, seed);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace gdpcache::engine
