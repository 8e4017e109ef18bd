#ifndef GDPCACHE_TESTS_BENCH_PREFILL_WORKLOAD_H_
#define GDPCACHE_TESTS_BENCH_PREFILL_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gdpcache/client.h"
#include "kernels/backend.h"

namespace gdpcache::bench {

/// One prefill of bfloat16 inputs with decay into a float32 cache, v_new wanted.
struct PrefillShape {
  std::string name;
  std::vector<std::int64_t> lengths;  // expanded tokens of each sequence
  std::int64_t heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t num_householder = 1;
  bool all_states = false;  // return every boundary state, float32
  bool continues = false;   // from the slots, as a model's next token does; else every sequence starts from zero
};

/// The tensors of one prefill in memory of this process, run as a call of the kernel or as a call to a server.
class PrefillWorkload {
 public:
  /// Inputs that keep the state bounded, the same for equal shapes.
  explicit PrefillWorkload(PrefillShape shape);

  const PrefillShape& shape() const { return shape_; }
  std::int64_t bytes_in() const;
  std::int64_t bytes_out() const;

  /// The bare recurrence on tensors that it reaches: copies to and from a device are not in the time.
  absl::StatusOr<absl::Duration> RunKernel(kernels::Backend& backend, kernels::Stream& stream);

  /// Puts the tensors of RunPrefill into memory that the session shares with its server, for kSharedMemory.
  absl::Status Share(Session& session);

  /// The same through a server, into `slots` of the session, one for each sequence.
  absl::StatusOr<absl::Duration> RunPrefill(Session& session, const std::vector<std::int64_t>& slots,
                                            Transport transport);

  /// Whether the last RunKernel and the last RunPrefill left the same bits.
  bool ResultsAgree() const;

  CacheGeometry geometry() const;

 private:
  struct Results {
    std::vector<std::uint16_t> v_new;
    std::vector<float> h;
  };

  /// Every tensor of a launch, in somebody's reach.
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

  std::int64_t sequences() const { return static_cast<std::int64_t>(shape_.lengths.size()); }
  Results MakeResults() const;

  PrefillShape shape_;
  std::vector<std::int64_t> cu_seqlens_;
  std::int64_t tokens_ = 0;      // expanded, of all sequences
  std::int64_t boundaries_ = 0;  // of all sequences, when they are wanted
  std::vector<std::uint16_t> k_;
  std::vector<std::uint16_t> w_;
  std::vector<std::uint16_t> u_;
  std::vector<float> g_;
  std::vector<float> slots_;
  std::vector<kernels::Buffer> device_;  // of the backend of the first RunKernel, where it cannot reach the tensors
  Results from_kernel_;
  Results from_server_;
  std::optional<SharedMemory> shared_;
  Operands called_;  // what RunPrefill names
};

}  // namespace gdpcache::bench

#endif  // GDPCACHE_TESTS_BENCH_PREFILL_WORKLOAD_H_
