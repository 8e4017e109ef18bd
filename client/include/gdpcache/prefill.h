#ifndef GDPCACHE_PREFILL_H_
#define GDPCACHE_PREFILL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gdpcache/snapshot.h"
#include "gdpcache/tensor.h"

/// One call of the recurrence for one layer. Sizes: T expanded tokens of all sequences, N sequences; H, K, V, M are the
/// cache's heads, key_dim, value_dim and num_householder.
namespace gdpcache {

/// Base of the decays in g. Natural ones are converted by the server.
enum class DecayBase { kLog2, kNatural };

/// How the recurrence multiplies bfloat16 and float16 inputs. High: relative error of states about 1e-5.
enum class Precision { kDefault, kHigh };

/// Where each sequence starts from.
enum class InitialState {
  kSlot,    // its slot's own content; a sequence of slot -1 starts from zero
  kZero,    // zero
  kTensor,  // PrefillCall::initial_state
};

/// Boundary j of a sequence is the state after j * chunk_size tokens.
struct BoundaryRef {
  std::int64_t sequence = 0;
  std::int64_t boundary = 0;
};

/// Which boundary states come back in h.
enum class States {
  kNone,
  kAll,
  kSelected,  // PrefillCall::selected
};

/// How tensors travel.
enum class Transport {
  kAuto,    // what lies in SharedMemory stays there; the rest by size: unary up to about a megabyte, else a stream
  kUnary,   // one message each way; refused beyond the server's message limit
  kStream,  // frames both ways at once; any size
  kSharedMemory,  // nothing travels: INVALID_ARGUMENT unless every tensor, results too, lies in the session's
                  // SharedMemory
};

/// Where results go, each optional and of exactly the result's dtype and number of elements. Results that are asked for
/// and not placed here are allocated by the library.
struct PrefillOutputs {
  std::optional<Tensor> h = {};            // [boundaries, H, K, V] in states_dtype
  std::optional<Tensor> v_new = {};        // shaped like u, in the input dtype
  std::optional<Tensor> final_state = {};  // [N, H, K, V] float32
};

/// The request. Everything it points to stays the caller's and must not change until the call has returned.
struct PrefillCall {
  std::int64_t layer = 0;

  // Rows on the expanded token stream: [T, H, K] for k and w, [T, H, V] for u, [T, H] for g, or the same with a leading
  // batch dimension. k, w and u share one dtype, the input dtype.
  ConstTensor k;
  ConstTensor w;
  ConstTensor u;
  std::optional<ConstTensor> g = {};  // float32, cumulative decay within each chunk; absent: no decay
  DecayBase g_base = DecayBase::kLog2;

  // How T splits into sequences: boundaries [N + 1] on the expanded stream, or `batch` equal sequences (0 means 1).
  IndexSpan cu_seqlens = {};
  std::int64_t batch = 0;

  std::int64_t chunk_size = 0;       // expanded tokens: 16, 32, 64, 128; 0 means 64
  std::int64_t num_householder = 0;  // 0 means the cache's
  IndexSpan chunk_offsets = {};      // checked by the server when given
  IndexSpan chunk_indices = {};      // checked by the server when given

  IndexSpan state_indices = {};  // [N] slots, -1 stores nowhere; empty: no sequence has one
  InitialState initial_state_source = InitialState::kSlot;
  std::optional<ConstTensor> initial_state = {};  // [N, H, K, V] float32, with InitialState::kTensor

  bool save_new_value = false;
  bool output_final_state = false;
  States states = States::kNone;
  absl::Span<const BoundaryRef> selected = {};  // ascending, distinct
  std::optional<DataType> states_dtype = {};    // of h; the input dtype unless given

  // [N] tokens each slot must have absorbed before the call; -1 is not checked. A mismatch is FAILED_PRECONDITION, see
  // PositionMismatches: so a caller that lost an answer learns whether the call was applied.
  IndexSpan expected_positions = {};

  bool check_finite = false;                        // NaN or infinity in an input fails the call
  std::optional<ConstTensor> auxiliary_state = {};  // [N, auxiliary_bytes] uint8: replaces the slots' auxiliary bytes
  absl::Span<const SnapshotDirective> snapshots = {};  // boundaries to keep for other requests
  std::string request_id = {};                         // for the server's logs; at most 128 bytes
  Precision precision = Precision::kDefault;

  PrefillOutputs outputs = {};
  Transport transport = Transport::kAuto;
};

/// Time spent in the server.
struct PrefillTiming {
  absl::Duration queue;
  absl::Duration stage_in;
  absl::Duration compute;
  absl::Duration stage_out;
  absl::Duration total;
};

/// What a successful call returns.
struct PrefillResult {
  // Results that were asked for and not placed by PrefillOutputs; empty otherwise.
  OwnedTensor h;
  OwnedTensor v_new;
  OwnedTensor final_state;

  std::vector<std::int64_t> chunk_offsets;  // [N + 1] prefix sums of boundaries per sequence
  std::vector<std::int64_t> positions;      // [N] tokens the slots have absorbed; -1 for slot -1
  std::vector<SnapshotOutcome> snapshots;   // one per directive
  PrefillTiming timing;
  Transport transport = Transport::kUnary;  // the one used; kSharedMemory if at least one tensor did not travel
};

}  // namespace gdpcache

#endif  // GDPCACHE_PREFILL_H_
