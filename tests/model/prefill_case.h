#ifndef GDPCACHE_TESTS_MODEL_PREFILL_CASE_H_
#define GDPCACHE_TESTS_MODEL_PREFILL_CASE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gdpcache/prefill.h"
#include "kernels/backend.h"
#include "tests/model/world.h"
#include "tests/reference/problem.h"

namespace gdpcache::test {

kernels::DataType KernelType(DataType dtype);
DataType ClientType(kernels::DataType dtype);

/// A sequence's results before they are rounded to what somebody asked for.
struct SequenceNumbers {
  testing::HostTensor v_new;        // [rows, H, V] in the input dtype
  testing::HostTensor boundaries;   // [boundaries, H, K, V] float32
  testing::HostTensor final_state;  // [1, H, K, V] float32
};

/// One prefill: what is sent, and what has to come of it.
struct PrefillCase {
  // The request. `call` points into the rest.
  testing::Problem problem;      // lengths and operands; its g is log2
  std::int64_t unused_rows = 0;  // NaN behind the last sequence
  std::optional<testing::HostTensor> sent_g;
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> expected_positions;
  std::vector<std::int64_t> chunk_offsets;
  std::vector<BoundaryRef> selected;
  std::vector<SnapshotDirective> directives;
  std::string auxiliary;
  bool has_auxiliary = false;
  PrefillCall call;
  // Memory shared with the server: what lies where, and where results come that are placed.
  absl::Span<const std::byte> shared;
  std::vector<absl::Span<const std::byte>> shared_places;  // ascending
  std::optional<absl::Span<const std::byte>> placed_h;
  std::optional<absl::Span<const std::byte>> placed_v_new;
  std::optional<absl::Span<const std::byte>> placed_final_state;

  // What must come of it.
  std::set<absl::StatusCode> errors;  // one of these, and nothing changes; empty: it succeeds
  std::vector<SequenceNumbers> numbers;
  std::vector<std::int64_t> positions;  // after it
  std::vector<LayerState> after;        // the slots' layer, by sequence

  std::int64_t sequences() const { return problem.sequences(); }
  std::int64_t Tokens(std::int64_t sequence) const;
  /// Where the slot stands at a boundary, once the sequence has been run.
  std::int64_t BoundaryPosition(std::int64_t sequence, std::int64_t boundary) const;
  std::string ExpectedH() const;
  std::string ExpectedVNew() const;
  std::string ExpectedFinalState() const;
  /// The state after min(boundary * chunk size, length) tokens, in the cache's dtype.
  std::string BoundaryState(std::int64_t sequence, std::int64_t boundary, DataType dtype) const;
};

/// Runs each sequence by itself with the CPU backend's kernels, from `before` (the slots' layer by sequence; nullptr
/// for slot -1), and fills in numbers, positions and after.
void RunModel(kernels::Backend& backend, kernels::Stream& stream, const CacheGeometry& geometry,
              const std::vector<const LayerState*>& before, PrefillCase& prefill);

/// Nothing, or how far the numbers are from the recurrence in float64.
std::optional<std::string> CompareWithExact(const CacheGeometry& geometry, const std::vector<const LayerState*>& before,
                                            const PrefillCase& prefill);

/// Nothing, or the first result that differs from the model's.
std::optional<std::string> CompareResults(const PrefillCase& prefill, const PrefillResult& result);

/// Bytes of floating-point numbers in another dtype, rounded to nearest even.
std::string Convert(const testing::HostTensor& tensor, DataType dtype);

inline std::string BytesOf(const testing::HostTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}
inline std::string BytesOf(const OwnedTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data()), static_cast<std::size_t>(tensor.byte_size())};
}
inline ConstTensor ViewOf(const testing::HostTensor& tensor) {
  return {ClientType(tensor.dtype), tensor.shape, tensor.bytes.data()};
}

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_MODEL_PREFILL_CASE_H_
