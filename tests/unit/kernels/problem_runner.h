#ifndef GDPCACHE_TESTS_UNIT_KERNELS_PROBLEM_RUNNER_H_
#define GDPCACHE_TESTS_UNIT_KERNELS_PROBLEM_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "tests/reference/problem.h"

namespace gdpcache::testing {

/// A single boundary to store besides, or instead of, all of them.
struct BoundaryRequest {
  std::int64_t sequence = 0;
  std::int64_t boundary = 0;
  kernels::DataType dtype = kernels::DataType::kFloat32;
};

/// How a problem is laid out in the backend's memory, and what is asked for.
struct RunOptions {
  std::int64_t misalign_elements = 0;       // offset of every tensor from an aligned address
  std::int64_t head_gap_elements = 0;       // unused elements behind every head of the cache
  bool all_boundaries = true;               // fill Outputs::h
  std::vector<BoundaryRequest> boundaries;  // ascending within a sequence; fill Results::boundaries
};

struct Results : Outputs {
  std::vector<HostTensor> boundaries;  // one [H, K, V] per request
};

/// Memory of a backend with guard zones of NaN around what a test uses.
class GuardedMemory {
 public:
  /// `bytes` of memory, all of it NaN in every dtype, `offset` bytes from an aligned address.
  GuardedMemory(kernels::Backend& backend, kernels::Stream& stream, std::size_t bytes, std::size_t offset);

  std::byte* data() const { return buffer_.bytes() + begin_; }
  void Upload(const std::vector<std::byte>& bytes);
  std::vector<std::byte> Download() const;

  /// Fails the running test if anything outside the memory has changed.
  void ExpectGuardsIntact() const;

 private:
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  kernels::Buffer buffer_;
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
};

/// Runs the problem as one launch, slots updated in place, every tensor between guard zones. Fails the running test
/// when the backend returns an error or writes where it must not.
Results RunProblem(kernels::Backend& backend, const Problem& problem, const RunOptions& options = {});

}  // namespace gdpcache::testing

#endif  // GDPCACHE_TESTS_UNIT_KERNELS_PROBLEM_RUNNER_H_
