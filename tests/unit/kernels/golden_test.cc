#include <algorithm>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "tests/golden/golden_batch.h"
#include "tests/reference/exact_recurrence.h"
#include "tests/reference/numbers.h"
#include "tests/unit/kernels/backend_test.h"
#include "tests/unit/kernels/problem_runner.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;

class GoldenTest : public BackendTest {};
GDPCACHE_INSTANTIATE_BACKEND_TESTS(GoldenTest);

/// The error a backend may have where the recorded outputs have `recorded`.
double Allowed(double recorded) { return std::max(1.1 * recorded, 1e-5); }

TEST_P(GoldenTest, ErrorsAgainstFloat64StayWithinTheRecordedOnes) {
  const std::vector<std::string> names = GoldenBatchNames();
  ASSERT_EQ(names.size(), 23U);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const auto batch = LoadGoldenBatch(name);
    ASSERT_TRUE(batch.ok()) << batch.status();
    const Results results = RunProblem(backend(), batch->problem);
    const ExactOutputs exact = ExactRecurrence(batch->problem);
    const bool dense = batch->recorded.final_state.present();
    const double h = RelativeError(Decode(results.h), exact.h);
    const double v_new = RelativeError(Decode(results.v_new), exact.v_new);
    const double state = dense ? RelativeError(Decode(results.final_state), exact.final_state)
                               : RelativeError(Decode(results.state), exact.state);
    EXPECT_LE(h, Allowed(batch->recorded_error_h));
    EXPECT_LE(v_new, Allowed(batch->recorded_error_v_new));
    EXPECT_LE(state, Allowed(batch->recorded_error_state));
    std::printf("%-34s h %.2e (%.2e)  v_new %.2e (%.2e)  state %.2e (%.2e)\n", name.c_str(), h, batch->recorded_error_h,
                v_new, batch->recorded_error_v_new, state, batch->recorded_error_state);
  }
}

TEST_P(GoldenTest, HighPrecisionKeepsFloat32StatesWithinOneInAHundredThousand) {
  for (const std::string& name : GoldenBatchNames()) {
    SCOPED_TRACE(name);
    const auto batch = LoadGoldenBatch(name);
    ASSERT_TRUE(batch.ok()) << batch.status();
    Problem problem = batch->problem;
    problem.shape.precision = kernels::Precision::kHigh;
    problem.states_dtype = DataType::kFloat32;
    const Results results = RunProblem(backend(), problem);
    const ExactOutputs exact = ExactRecurrence(problem);
    EXPECT_LE(RelativeError(Decode(results.h), exact.h), 1e-5);
    if (batch->recorded.final_state.present()) {
      EXPECT_LE(RelativeError(Decode(results.final_state), exact.final_state), 1e-5);
    } else if (problem.state.dtype == DataType::kFloat32) {
      EXPECT_LE(RelativeError(Decode(results.state), exact.state), 1e-5);
    }
  }
}

TEST_P(GoldenTest, OutputsAgreeWithTheRecordedOnes) {
  for (const std::string& name : GoldenBatchNames()) {
    SCOPED_TRACE(name);
    const auto batch = LoadGoldenBatch(name);
    ASSERT_TRUE(batch.ok()) << batch.status();
    const Results results = RunProblem(backend(), batch->problem);
    const auto expect_close = [](const HostTensor& actual, const HostTensor& recorded, double recorded_error) {
      ASSERT_EQ(actual.shape, recorded.shape);
      ASSERT_EQ(actual.dtype, recorded.dtype);
      // Both err against the exact values, in directions of their own.
      EXPECT_LE(RelativeError(Decode(actual), Decode(recorded)), 2.1 * std::max(recorded_error, 1e-5));
    };
    expect_close(results.h, batch->recorded.h, batch->recorded_error_h);
    expect_close(results.v_new, batch->recorded.v_new, batch->recorded_error_v_new);
    expect_close(results.state, batch->recorded.state, batch->recorded_error_state);
    expect_close(results.final_state, batch->recorded.final_state, batch->recorded_error_state);
  }
}

TEST_P(GoldenTest, SlotsThatNoSequenceNamesKeepTheirBits) {
  for (const std::string& name : GoldenBatchNames()) {
    SCOPED_TRACE(name);
    const auto batch = LoadGoldenBatch(name);
    ASSERT_TRUE(batch.ok()) << batch.status();
    const Problem& problem = batch->problem;
    if (!problem.state.present()) continue;
    const Results results = RunProblem(backend(), problem);
    const auto slot_bytes = static_cast<std::ptrdiff_t>(problem.state_elements() * ByteSize(problem.state.dtype));
    for (std::int64_t slot = 0; slot < problem.state.shape[0]; ++slot) {
      if (std::count(problem.state_indices.begin(), problem.state_indices.end(), slot) != 0) continue;
      const auto before = problem.state.bytes.begin() + slot * slot_bytes;
      EXPECT_TRUE(std::equal(before, before + slot_bytes, results.state.bytes.begin() + slot * slot_bytes)) << slot;
    }
  }
}

}  // namespace
}  // namespace gdpcache::testing
