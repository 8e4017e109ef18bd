// Every SIMD target of this processor, the scalar fallback included, gives the same bits.

#include "kernels/cpu/simd.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/backend.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/kernels/problem_runner.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;

/// Makes the dispatch use one target while it lives.
class WithTarget {
 public:
  explicit WithTarget(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
  }
  WithTarget(const WithTarget&) = delete;
  WithTarget& operator=(const WithTarget&) = delete;
  ~WithTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

/// The targets of this processor that the kernels are compiled for, the fallback included.
std::vector<std::int64_t> Targets() {
  std::vector<std::int64_t> targets;
  std::set<std::string> names;
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const WithTarget with_target(left & -left);
    if (names.insert(kernels::cpu::SimdTargetName()).second) targets.push_back(left & -left);
  }
  return targets;
}

TEST(SimdTest, TargetsGiveTheSameBits) {
  const auto backend = kernels::CreateBackend({.choice = kernels::BackendChoice::kCpu, .cpu_threads = 1});
  ASSERT_TRUE(backend.ok()) << backend.status();
  std::vector<Problem> problems;
  for (std::uint64_t seed = 1000; seed < 1060; ++seed) problems.push_back(RandomSmallProblem(seed));
  ProblemSpec spec;
  spec.shape = {.heads = 1, .key_dim = 128, .value_dim = 128, .input_dtype = DataType::kBFloat16};
  spec.lengths = {70, 1, 2, 3, 4};
  problems.push_back(RandomProblem(spec, 1));

  std::vector<Results> expected;
  std::vector<std::string> names;
  for (const std::int64_t target : Targets()) {
    const WithTarget with_target(target);
    names.emplace_back(kernels::cpu::SimdTargetName());
    SCOPED_TRACE(names.back());
    for (std::size_t i = 0; i < problems.size(); ++i) {
      const Results results = RunProblem(**backend, problems[i]);
      if (names.size() == 1) {
        expected.push_back(results);
        continue;
      }
      EXPECT_TRUE(results.h.bytes == expected[i].h.bytes) << i;
      EXPECT_TRUE(results.v_new.bytes == expected[i].v_new.bytes) << i;
      EXPECT_TRUE(results.state.bytes == expected[i].state.bytes) << i;
      EXPECT_TRUE(results.final_state.bytes == expected[i].final_state.bytes) << i;
    }
  }
  RecordProperty("targets", ::testing::PrintToString(names));
#ifdef __x86_64__
  EXPECT_GE(names.size(), 2U);
#endif
}

TEST(SimdTest, ThreadCountsAndTheirTilesGiveTheSameBits) {
  ProblemSpec spec;
  spec.shape = {.heads = 1, .key_dim = 96, .value_dim = 200, .input_dtype = DataType::kBFloat16};
  spec.lengths = {500};
  const Problem problem = RandomProblem(spec, 2);
  Results expected;
  for (const int threads : {1, 2, 3, 7}) {
    const auto backend = kernels::CreateBackend({.choice = kernels::BackendChoice::kCpu, .cpu_threads = threads});
    ASSERT_TRUE(backend.ok()) << backend.status();
    const Results results = RunProblem(**backend, problem);
    if (threads == 1) expected = results;
    EXPECT_TRUE(results.h.bytes == expected.h.bytes) << threads;
    EXPECT_TRUE(results.v_new.bytes == expected.v_new.bytes) << threads;
    EXPECT_TRUE(results.state.bytes == expected.state.bytes) << threads;
  }
}

TEST(SimdTest, Exp2IsAccurateOnEveryTarget) {
  std::vector<float> x;
  for (int i = 0; i <= 300000; ++i) x.push_back(static_cast<float>(i) * -0.001F);
  for (int i = 0; i <= 1000; ++i) x.push_back(static_cast<float>(i) * 0.1271F);
  for (const std::int64_t target : Targets()) {
    const WithTarget with_target(target);
    std::vector<float> y(x.size());
    kernels::cpu::Exp2Elements(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp2(static_cast<double>(x[i]));
      // Below 2^-126 half a unit in the last place of a subnormal is all there is.
      ASSERT_LE(std::fabs(y[i] - exact), 1e-7 * exact + 0x1p-150) << x[i] << " on " << kernels::cpu::SimdTargetName();
    }
  }
}

TEST(SimdTest, Exp2TreatsTheEdgesAlikeOnEveryTarget) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t target : Targets()) {
    const WithTarget with_target(target);
    const std::vector<float> x = {
        0.0F,     -0.0F,   1.0F,    -1.0F,   127.0F, 128.0F,    1e30F,
        infinity, -126.0F, -149.0F, -151.0F, -1e30F, -infinity, std::numeric_limits<float>::quiet_NaN()};
    std::vector<float> y(x.size());
    kernels::cpu::Exp2Elements(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    const std::vector<float> expected = {1.0F,     1.0F,      2.0F,      0.5F, 0x1p127F, infinity, infinity,
                                         infinity, 0x1p-126F, 0x1p-149F, 0.0F, 0.0F,     0.0F};
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(y[i], expected[i]) << x[i];
    EXPECT_TRUE(std::isnan(y.back()));
  }
}

}  // namespace
}  // namespace gdpcache::testing
