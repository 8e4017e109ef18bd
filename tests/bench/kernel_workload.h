#ifndef GDPCACHE_TESTS_BENCH_KERNEL_WORKLOAD_H_
#define GDPCACHE_TESTS_BENCH_KERNEL_WORKLOAD_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/command/bench/prefill_workload.h"
#include "kernels/backend.h"

namespace gdpcache::bench {

/// A prefill that runs as a call of the kernel, too.
class KernelWorkload : public PrefillWorkload {
 public:
  explicit KernelWorkload(PrefillShape shape);

  /// The bare recurrence on tensors that it reaches: copies to and from a device are not in the time.
  absl::StatusOr<absl::Duration> RunKernel(kernels::Backend& backend, kernels::Stream& stream);

  /// Whether the last RunKernel and the last RunPrefill left the same bits.
  bool ResultsAgree() const;

 private:
  /// Every tensor of a launch, in the backend's reach.
  struct Operands {
    const std::uint16_t* k;
    const std::uint16_t* w;
    const std::uint16_t* u;
    const float* g;
    std::uint16_t* v_new;
    float* h;
    float* slots;
  };

  std::vector<kernels::Sequence> Describe(const Operands& operands) const;
  /// The tensors themselves, or device copies made at the first call.
  absl::StatusOr<Operands> Reach(kernels::Backend& backend, kernels::Stream& stream);

  std::vector<float> slots_;
  Results results_;
  std::vector<kernels::Buffer> device_;  // of the backend of the first RunKernel, where it cannot reach the tensors
};

}  // namespace gdpcache::bench

#endif  // GDPCACHE_TESTS_BENCH_KERNEL_WORKLOAD_H_
