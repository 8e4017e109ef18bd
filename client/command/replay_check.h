#ifndef GDPCACHE_CLIENT_COMMAND_REPLAY_CHECK_H_
#define GDPCACHE_CLIENT_COMMAND_REPLAY_CHECK_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/command/recorded_batch.h"
#include "client/command/replay_run.h"
#include "nlohmann/json.hpp"

namespace gdpcache::command {

/// One tensor's relative errors, ||a - b|| / ||b|| in the Frobenius norm over all its elements; of the state, over the
/// slots that sequences name.
struct TensorCheck {
  std::string name;
  std::vector<std::int64_t> shape;
  double server_vs_exact = 0;
  double recorded_vs_exact = 0;
  double server_vs_recorded = 0;
  double limit = 0;  // of server_vs_exact
  bool pass = false;
};

/// Bytes that must be equal.
struct IdentityCheck {
  std::string name;
  std::int64_t checked = 0;
  std::int64_t different = 0;
};

struct CheckReport {
  std::vector<TensorCheck> tensors;
  std::vector<IdentityCheck> identities;
  bool pass = false;
};

/// Compares the server's results with the exact recurrence and with the recorded kernel's. INVALID_ARGUMENT when the
/// file has no recorded result for one of them.
absl::StatusOr<CheckReport> CheckResults(const RecordedBatch& batch, const ReplayResults& results);

void PrintReport(const CheckReport& report, std::ostream& out);
nlohmann::json ToJson(const CheckReport& report);

/// ||a - b|| / ||b||; 0 where both are zero. NaN where an element is.
double RelativeError(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_REPLAY_CHECK_H_
