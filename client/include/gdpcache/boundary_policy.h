#ifndef GDPCACHE_BOUNDARY_POLICY_H_
#define GDPCACHE_BOUNDARY_POLICY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

/// Which states of a prompt are worth keeping, and which boundaries of its prefill calls they are. Pure arithmetic.
namespace gdpcache {

/// All that is asked for is kept; what falls together is kept once. The default are the three states that Megatron-LM
/// keeps of a request. Positions are rounded down to `alignment`, but for the end of the prompt itself.
struct BoundaryPolicy {
  std::int64_t alignment = 64;  // tokens; a multiple of the prefills' chunk_size, which alone has boundaries there

  // The last multiple of `alignment` in the prompt: what a longer prompt continues from.
  bool last_aligned = true;
  // The one before: what the same prompt continues from when its length is aligned, for the last token's output has to
  // be computed anew.
  bool penultimate = true;
  // Where the prompt leaves what is known from others: what a third prompt will share with both.
  bool divergence = true;

  std::int64_t interval = 0;                  // every so many tokens; 0: none
  std::vector<std::int64_t> from_start = {};  // tokens behind the start, e.g. the length of a system prompt
  std::vector<std::int64_t> from_end = {};    // tokens before the end; 0: the end, what the next turn continues from
};

struct PromptExtent {
  std::int64_t tokens = 0;   // of the whole prompt
  std::int64_t known = 0;    // first tokens that it shares with an earlier prompt, whether or not a snapshot is there
  std::int64_t resumed = 0;  // position of the snapshot that was restored: nothing up to there has to be kept
};

/// The positions to keep, in tokens from the prompt's start: ascending, distinct, behind `resumed` and up to the end.
/// Offsets that leave the prompt are passed over. INVALID_ARGUMENT names a number that makes no sense.
absl::StatusOr<std::vector<std::int64_t>> BoundaryPositions(const BoundaryPolicy& policy, const PromptExtent& prompt);

/// A position as a boundary of one prefill call; see SnapshotDirective::boundary.
struct CallBoundary {
  std::int64_t boundary = 0;
  std::int64_t position = 0;
};

/// Those of `positions` that a call which takes the prompt's tokens [begin, end) reaches: the ones in it that lie a
/// multiple of `chunk_size` (0: 64) behind its begin, and its end. For a prompt prefilled in several calls: each of
/// them reaches all of its aligned positions when the calls before ended at multiples of the chunk size.
/// INVALID_ARGUMENT for an impossible extent or chunk size.
absl::StatusOr<std::vector<CallBoundary>> CallBoundaries(absl::Span<const std::int64_t> positions, std::int64_t begin,
                                                         std::int64_t end, std::int64_t chunk_size = 0);

}  // namespace gdpcache

#endif  // GDPCACHE_BOUNDARY_POLICY_H_
