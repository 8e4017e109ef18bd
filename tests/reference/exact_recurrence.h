#ifndef GDPCACHE_TESTS_REFERENCE_EXACT_RECURRENCE_H_
#define GDPCACHE_TESTS_REFERENCE_EXACT_RECURRENCE_H_

#include <vector>

#include "tests/reference/problem.h"

namespace gdpcache::testing {

/// Outputs before any rounding, laid out as Outputs; empty where the problem does not ask for them.
struct ExactOutputs {
  std::vector<double> h;
  std::vector<double> v_new;
  std::vector<double> state;
  std::vector<double> final_state;
};

/// The recurrence in float64 on the problem's stored operands: the definition, written for reading.
ExactOutputs ExactRecurrence(const Problem& problem);

}  // namespace gdpcache::testing

#endif  // GDPCACHE_TESTS_REFERENCE_EXACT_RECURRENCE_H_
