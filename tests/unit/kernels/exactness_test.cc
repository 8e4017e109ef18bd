// The promises about single bits: splitting, batching, snapshots, repeats.

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/reference/numbers.h"
#include "tests/reference/problem_edit.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/kernels/backend_test.h"
#include "tests/unit/kernels/problem_runner.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;

class ExactnessTest : public BackendTest {};
GDPCACHE_INSTANTIATE_BACKEND_TESTS(ExactnessTest);

void ExpectSameBits(const HostTensor& actual, const HostTensor& expected, const char* name) {
  EXPECT_EQ(actual.shape, expected.shape) << name;
  EXPECT_TRUE(actual.bytes == expected.bytes) << name << " differs";
}

void ExpectSameBits(const Results& actual, const Results& expected) {
  ExpectSameBits(actual.h, expected.h, "h");
  ExpectSameBits(actual.v_new, expected.v_new, "v_new");
  ExpectSameBits(actual.state, expected.state, "state");
  ExpectSameBits(actual.final_state, expected.final_state, "final_state");
}

ProblemSpec Spec(std::int64_t key_dim, std::int64_t value_dim, std::int64_t num_householder,
                 std::vector<std::int64_t> lengths) {
  ProblemSpec spec;
  spec.shape = {.heads = 2,
                .key_dim = key_dim,
                .value_dim = value_dim,
                .num_householder = num_householder,
                .chunk_size = 64,
                .input_dtype = DataType::kBFloat16};
  spec.lengths = std::move(lengths);
  return spec;
}

/// Runs one sequence in pieces of these many tokens, each from the slot the one before left.
Results RunInPieces(kernels::Backend& backend, const Problem& problem, const std::vector<std::int64_t>& tokens) {
  Results whole;
  whole.state = problem.state;
  std::int64_t first = 0;
  for (const std::int64_t count : tokens) {
    Problem piece = PartOfSequence(problem, 0, first, count * problem.shape.num_householder);
    piece.state = whole.state;
    if (first > 0) piece.initial = InitialState::kSlot;
    const Results results = RunProblem(backend, piece);
    whole.h = Concatenate(whole.h, results.h);
    whole.v_new = Concatenate(whole.v_new, results.v_new);
    whole.state = results.state;
    whole.final_state = results.final_state;
    first += count * problem.shape.num_householder;
  }
  return whole;
}

TEST_P(ExactnessTest, SplittingAtBoundariesChangesNoBit) {
  std::uint64_t seed = 1;
  for (const std::int64_t num_householder : {1, 2, 3}) {
    for (const auto initial : {InitialState::kSlot, InitialState::kZero, InitialState::kTensor}) {
      SCOPED_TRACE(num_householder);
      ProblemSpec spec = Spec(64, 72, num_householder, {256});
      spec.initial = initial;
      const Problem problem = RandomProblem(spec, seed++);
      const Results whole = RunProblem(backend(), problem);
      ExpectSameBits(RunInPieces(backend(), problem, {64, 64, 64, 64}), whole);
      ExpectSameBits(RunInPieces(backend(), problem, {128, 128}), whole);
      ExpectSameBits(RunInPieces(backend(), problem, {64, 192}), whole);
    }
  }
}

TEST_P(ExactnessTest, ContinuingWithSingleTokensAfterABoundaryChangesNoBit) {
  const Problem problem = RandomProblem(Spec(128, 128, 1, {65}), 5);
  ExpectSameBits(RunInPieces(backend(), problem, {64, 1}), RunProblem(backend(), problem));
}

TEST_P(ExactnessTest, BatchMatesChangeNoBit) {
  for (const std::int64_t dim : {40, 128}) {
    ProblemSpec spec = Spec(dim, dim, 2, {100, 0, 1, 64, 63, 3, 1, 129});
    spec.output_final_state = true;
    const Problem batch = RandomProblem(spec, 7);
    const Results together = RunProblem(backend(), batch);
    std::int64_t boundary = 0;
    for (std::int64_t n = 0; n < batch.sequences(); ++n) {
      SCOPED_TRACE(n);
      const Results alone = RunProblem(backend(), OneSequence(batch, n));
      const std::int64_t row = batch.cu_seqlens[static_cast<std::size_t>(n)];
      const std::int64_t rows = batch.cu_seqlens[static_cast<std::size_t>(n) + 1] - row;
      const std::int64_t slot = batch.state_indices[static_cast<std::size_t>(n)];
      ExpectSameBits(Rows(together.v_new, row, rows), alone.v_new, "v_new");
      ExpectSameBits(Rows(together.h, boundary, batch.BoundaryCount(n)), alone.h, "h");
      ExpectSameBits(Rows(together.final_state, n, 1), alone.final_state, "final_state");
      ExpectSameBits(Rows(together.state, slot, 1), Rows(alone.state, slot, 1), "state");
      boundary += batch.BoundaryCount(n);
    }
  }
}

TEST_P(ExactnessTest, SnapshotsResumeWithEveryLaterBitEqual) {
  const Problem problem = RandomProblem(Spec(96, 80, 2, {300}), 9);
  const Results whole = RunProblem(backend(), problem);
  const std::int64_t boundary_rows = problem.shape.num_householder * problem.shape.chunk_size;
  for (std::int64_t boundary = 1; boundary < problem.BoundaryCount(0); ++boundary) {
    SCOPED_TRACE(boundary);
    const std::int64_t first = boundary * boundary_rows;
    Problem rest = PartOfSequence(problem, 0, first, problem.tokens() - first);
    rest.initial = InitialState::kTensor;
    rest.initial_state = Rows(whole.h, boundary, 1);
    const Results resumed = RunProblem(backend(), rest);
    ExpectSameBits(resumed.h, Rows(whole.h, boundary, problem.BoundaryCount(0) - boundary), "h");
    ExpectSameBits(resumed.v_new, Rows(whole.v_new, first, problem.tokens() - first), "v_new");
    ExpectSameBits(resumed.state, whole.state, "state");
    ExpectSameBits(resumed.final_state, whole.final_state, "final_state");
  }
}

TEST_P(ExactnessTest, TwoHundredRepeatsAreIdentical) {
  const Problem problem = RandomProblem(Spec(64, 64, 1, {130, 1, 64, 7}), 11);
  const Results first = RunProblem(backend(), problem);
  for (int repeat = 1; repeat < 200; ++repeat) {
    ExpectSameBits(RunProblem(backend(), problem), first);
    if (HasFailure()) break;
  }
}

TEST_P(ExactnessTest, SingleBoundariesEqualThoseOfAll) {
  const Problem problem = RandomProblem(Spec(48, 56, 2, {200, 65, 0, 128}), 13);
  const Results all = RunProblem(backend(), problem);
  RunOptions options;
  // 4, 2, 0 and 2 boundaries; one is asked for twice.
  options.boundaries = {{0, 0}, {0, 2}, {0, 2, DataType::kBFloat16}, {0, 3, DataType::kFloat16}, {1, 1}, {3, 1}};
  const std::vector<std::int64_t> positions = {0, 2, 2, 3, 5, 7};
  for (const bool with_all : {true, false}) {
    options.all_boundaries = with_all;
    const Results chosen = RunProblem(backend(), problem, options);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      SCOPED_TRACE(i);
      const HostTensor exact = Rows(all.h, positions[i], 1);
      EXPECT_TRUE(chosen.boundaries[i].bytes == Encode(options.boundaries[i].dtype, exact.shape, Decode(exact)).bytes);
    }
    ExpectSameBits(chosen.state, all.state, "state");
    ExpectSameBits(chosen.v_new, all.v_new, "v_new");
  }
}

TEST_P(ExactnessTest, EveryChunkSizeAndDtypeKeepsThePromises) {
  struct Form {
    DataType dtype;
    std::int64_t chunk_size;
    std::int64_t key_dim;
    kernels::Precision precision = kernels::Precision::kDefault;
  };
  const Form forms[] = {{DataType::kFloat32, 64, 72},
                        {DataType::kFloat32, 16, 128},
                        {DataType::kFloat32, 128, 200},
                        {DataType::kBFloat16, 32, 128},
                        {DataType::kBFloat16, 128, 72},
                        {DataType::kBFloat16, 16, 256},
                        {DataType::kFloat16, 128, 128},
                        {DataType::kFloat16, 64, 13},
                        {DataType::kBFloat16, 64, 128, kernels::Precision::kHigh},
                        {DataType::kFloat16, 32, 40, kernels::Precision::kHigh}};
  std::uint64_t seed = 31;
  for (const Form& form : forms) {
    SCOPED_TRACE(::testing::Message() << Name(form.dtype) << ", chunk " << form.chunk_size << ", K " << form.key_dim);
    const std::int64_t chunk = form.chunk_size;
    const auto spec = [&](std::vector<std::int64_t> lengths) {
      ProblemSpec made = Spec(form.key_dim, 72, 2, std::move(lengths));
      made.shape.input_dtype = form.dtype;
      made.shape.chunk_size = chunk;
      made.shape.precision = form.precision;
      return made;
    };
    const Problem one = RandomProblem(spec({4 * chunk + 3}), seed++);
    const Results whole = RunProblem(backend(), one);
    ExpectSameBits(RunInPieces(backend(), one, {chunk, 2 * chunk, chunk + 3}), whole);

    const Problem batch = RandomProblem(spec({chunk + 1, 0, 1, chunk, 2 * chunk - 1}), seed++);
    const Results together = RunProblem(backend(), batch);
    for (std::int64_t n = 0; n < batch.sequences(); ++n) {
      const Results alone = RunProblem(backend(), OneSequence(batch, n));
      const std::int64_t row = batch.cu_seqlens[static_cast<std::size_t>(n)];
      const std::int64_t slot = batch.state_indices[static_cast<std::size_t>(n)];
      ExpectSameBits(Rows(together.v_new, row, batch.cu_seqlens[static_cast<std::size_t>(n) + 1] - row), alone.v_new,
                     "v_new");
      ExpectSameBits(Rows(together.state, slot, 1), Rows(alone.state, slot, 1), "state");
    }
    for (int repeat = 1; repeat < 200 && !HasFailure(); ++repeat)
      ExpectSameBits(RunProblem(backend(), batch), together);
    if (HasFailure()) return;
  }
}

TEST_P(ExactnessTest, LayoutChangesNoBit) {
  for (const auto dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    ProblemSpec spec = Spec(64, 72, 1, {70, 1});
    spec.shape.input_dtype = dtype;
    spec.state_dtype = dtype;
    const Problem problem = RandomProblem(spec, 15);
    const Results dense = RunProblem(backend(), problem);
    for (const std::int64_t misaligned : {1, 3}) {
      RunOptions options;
      options.misalign_elements = misaligned;
      options.head_gap_elements = 40;
      ExpectSameBits(RunProblem(backend(), problem, options), dense);
    }
  }
}

TEST_P(ExactnessTest, WhatElseIsAskedForChangesNoBit) {
  for (const auto dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    for (const std::int64_t num_householder : {1, 2, 3, 4}) {
      for (const auto initial : {InitialState::kSlot, InitialState::kZero, InitialState::kTensor}) {
        ProblemSpec spec = Spec(128, 192, num_householder, {1, 1, 2, 64 / num_householder});
        spec.state_dtype = dtype;
        spec.initial = initial;
        Problem problem = RandomProblem(spec, 19);
        const Results everything = RunProblem(backend(), problem);
        problem.output_final_state = false;
        problem.save_new_value = false;
        RunOptions options;
        options.all_boundaries = false;
        ExpectSameBits(RunProblem(backend(), problem, options).state, everything.state, "state");
        problem.save_new_value = true;
        options.boundaries = {{1, 0}};
        const Results some = RunProblem(backend(), problem, options);
        ExpectSameBits(some.state, everything.state, "state");
        ExpectSameBits(some.v_new, everything.v_new, "v_new");
        EXPECT_TRUE(some.boundaries[0].bytes == Rows(everything.h, 1, 1).bytes);
      }
    }
  }
}

TEST_P(ExactnessTest, AbsentDecayEqualsZeroDecay) {
  ProblemSpec spec = Spec(64, 40, 2, {100, 1, 64});
  spec.decay = false;
  Problem problem = RandomProblem(spec, 17);
  const Results absent = RunProblem(backend(), problem);
  problem.g = ZeroTensor(DataType::kFloat32, {problem.tokens(), problem.shape.heads});
  ExpectSameBits(RunProblem(backend(), problem), absent);
}

TEST_P(ExactnessTest, CallsFromSeveralThreadsChangeNoBit) {
  std::vector<Problem> problems;
  std::vector<Results> alone;
  for (std::uint64_t i = 0; i < 4; ++i) {
    problems.push_back(RandomProblem(Spec(128, 128, 1, {300, 77, 1}), 20 + i));
    alone.push_back(RunProblem(backend(), problems.back()));
  }
  std::vector<Results> together(problems.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    threads.emplace_back([&, i] { together[i] = RunProblem(backend(), problems[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < problems.size(); ++i) ExpectSameBits(together[i], alone[i]);
}

}  // namespace
}  // namespace gdpcache::testing
