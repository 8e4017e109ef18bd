#ifndef GDPCACHE_CLIENT_COMMAND_EXACT_RECURRENCE_H_
#define GDPCACHE_CLIENT_COMMAND_EXACT_RECURRENCE_H_

#include <vector>

#include "client/command/recorded_batch.h"
#include "gdpcache/tensor.h"

namespace gdpcache::command {

/// Results in float64, without any rounding on the way.
struct ExactResults {
  std::vector<double> h;            // [boundaries, H, K, V]
  std::vector<double> v_new;        // [T, H, V], zero beyond the last sequence
  std::vector<double> final_state;  // [N, H, K, V]
  std::vector<double> state;        // [S, H, K, V]; empty without state.before
};

/// The recurrence on the batch's operands, written down as it is defined: slow, and sharing nothing with the kernels.
ExactResults ComputeExactly(const RecordedBatch& batch);

/// A float tensor's elements.
std::vector<double> ToDoubles(const ConstTensor& tensor);

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_EXACT_RECURRENCE_H_
