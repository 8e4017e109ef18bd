#ifndef GDPCACHE_TESTS_GOLDEN_GOLDEN_BATCH_H_
#define GDPCACHE_TESTS_GOLDEN_GOLDEN_BATCH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/reference/problem.h"

namespace gdpcache::testing {

/// A recorded call of the recurrence with another implementation's outputs.
struct GoldenBatch {
  std::string name;
  Problem problem;
  Outputs recorded;
  // The recording implementation's relative errors against float64.
  double recorded_error_h = 0;
  double recorded_error_v_new = 0;
  double recorded_error_state = 0;
};

/// The names of all recorded batches, sorted: files NAME.safetensors in tests/golden.
std::vector<std::string> GoldenBatchNames();

/// The file of that batch, e.g. for a command that reads it itself.
std::string GoldenBatchPath(const std::string& name);

absl::StatusOr<GoldenBatch> LoadGoldenBatch(const std::string& name);

}  // namespace gdpcache::testing

#endif  // GDPCACHE_TESTS_GOLDEN_GOLDEN_BATCH_H_
