#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_PREFILL_WORKLOAD_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_PREFILL_WORKLOAD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gdpcache/client.h"

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

/// The tensors of one prefill in memory of this process, and the call of it to a server.
class PrefillWorkload {
 public:
  /// Inputs that keep the state bounded, the same for equal shapes.
  explicit PrefillWorkload(PrefillShape shape);

  const PrefillShape& shape() const { return shape_; }
  std::int64_t bytes_in() const;
  std::int64_t bytes_out() const;

  /// Puts the tensors of RunPrefill into memory that the session shares with its server, for kSharedMemory.
  absl::Status Share(Session& session);

  /// Runs it on the server, into `slots` of the session, one for each sequence. What it takes until the results are
  /// here.
  absl::StatusOr<absl::Duration> RunPrefill(Session& session, const std::vector<std::int64_t>& slots,
                                            Transport transport);

  /// What the server has told about the last RunPrefill.
  const PrefillTiming& timing() const { return timing_; }

  CacheGeometry geometry() const;

 protected:
  static constexpr std::int64_t kChunk = 64;

  struct Inputs {
    std::vector<std::uint16_t> k;
    std::vector<std::uint16_t> w;
    std::vector<std::uint16_t> u;
    std::vector<float> g;
  };
  struct Results {
    std::vector<std::uint16_t> v_new;
    std::vector<float> h;
  };

  const Inputs& inputs() const { return inputs_; }
  const std::vector<std::int64_t>& cu_seqlens() const { return cu_seqlens_; }
  std::int64_t sequences() const { return static_cast<std::int64_t>(shape_.lengths.size()); }
  Results MakeResults() const;
  /// Where the last RunPrefill has left its results.
  const void* v_new() const { return called_.v_new; }
  const void* h() const { return called_.h; }

 private:
  /// What RunPrefill names: the tensors, or their copies in shared memory.
  struct Operands {
    const std::uint16_t* k;
    const std::uint16_t* w;
    const std::uint16_t* u;
    const float* g;
    std::uint16_t* v_new;
    float* h;
  };

  PrefillShape shape_;
  std::vector<std::int64_t> cu_seqlens_;
  std::int64_t tokens_ = 0;      // expanded, of all sequences
  std::int64_t boundaries_ = 0;  // of all sequences, when they are wanted
  Inputs inputs_;
  Results results_;
  std::optional<SharedMemory> shared_;
  Operands called_;
  PrefillTiming timing_;
};

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_PREFILL_WORKLOAD_H_
