#ifndef GDPCACHE_TESTS_REFERENCE_RANDOM_PROBLEM_H_
#define GDPCACHE_TESTS_REFERENCE_RANDOM_PROBLEM_H_

#include <cstdint>
#include <vector>

#include "tests/reference/problem.h"

namespace gdpcache::testing {

/// What a random problem looks like; everything not named here is drawn or left at Problem's defaults.
struct ProblemSpec {
  kernels::RecurrenceShape shape;
  std::vector<std::int64_t> lengths;  // tokens per sequence; times num_householder: expanded tokens
  bool decay = true;
  InitialState initial = InitialState::kSlot;
  kernels::DataType state_dtype = kernels::DataType::kFloat32;
  kernels::DataType states_dtype = kernels::DataType::kFloat32;
  bool save_new_value = true;
  bool output_final_state = true;
  std::vector<std::int64_t> state_indices;  // empty: a random choice of distinct slots, all of them used
  std::int64_t spare_slots = 2;             // slots that no sequence names
};

/// A problem of that form with realistic numbers: keys of unit length, writing factors below 1 (so that states stay of
/// order 1), w along the keys, within-chunk cumulative log2 decays. The same seed gives the same problem everywhere.
Problem RandomProblem(const ProblemSpec& spec, std::uint64_t seed);

/// A small problem of random form: ragged and empty sequences, skipped slots, M from 1 to 5, every dtype and chunk
/// size, odd dimensions.
Problem RandomSmallProblem(std::uint64_t seed);

}  // namespace gdpcache::testing

#endif  // GDPCACHE_TESTS_REFERENCE_RANDOM_PROBLEM_H_
