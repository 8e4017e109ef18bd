#include "gdpcache/boundary_policy.h"

#include <set>

#include "absl/strings/str_cat.h"

namespace gdpcache {
namespace {

constexpr std::int64_t kDefaultChunkSize = 64;

absl::Status Invalid(absl::string_view field, std::int64_t value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; it must ", rule));
}

absl::Status Check(const BoundaryPolicy& policy, const PromptExtent& prompt) {
  if (policy.alignment < 1) return Invalid("alignment", policy.alignment, "be positive");
  if (policy.interval < 0 || policy.interval % policy.alignment != 0) {
    return Invalid("interval", policy.interval,
                   absl::StrCat("be a multiple of the alignment, ", policy.alignment, ", or 0"));
  }
  for (const std::int64_t offset : policy.from_start) {
    if (offset < 0) return Invalid("from_start", offset, "not be negative");
  }
  for (const std::int64_t offset : policy.from_end) {
    if (offset < 0) return Invalid("from_end", offset, "not be negative");
  }
  if (prompt.tokens < 0) return Invalid("tokens", prompt.tokens, "not be negative");
  if (prompt.known < 0 || prompt.known > prompt.tokens) {
    return Invalid("known", prompt.known, absl::StrCat("be from 0 to the prompt's ", prompt.tokens, " tokens"));
  }
  if (prompt.resumed < 0 || prompt.resumed > prompt.tokens) {
    return Invalid("resumed", prompt.resumed, absl::StrCat("be from 0 to the prompt's ", prompt.tokens, " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::int64_t>> BoundaryPositions(const BoundaryPolicy& policy, const PromptExtent& prompt) {
  if (absl::Status status = Check(policy, prompt); !status.ok()) return status;
  std::set<std::int64_t> kept;
  const auto keep = [&](std::int64_t position) {
    if (position > prompt.resumed && position <= prompt.tokens) kept.insert(position);
  };
  const auto aligned = [&](std::int64_t position) { return position - position % policy.alignment; };
  const auto keep_rounded = [&](std::int64_t position) {
    keep(position == prompt.tokens ? position : aligned(position));
  };
  if (policy.last_aligned) keep(aligned(prompt.tokens));
  if (policy.penultimate) keep(aligned(prompt.tokens) - policy.alignment);
  if (policy.divergence) keep(aligned(prompt.known));
  if (policy.interval > 0) {
    // From the first behind `resumed`; by what is left, so that nothing overflows.
    for (std::int64_t position = prompt.resumed - prompt.resumed % policy.interval;
         policy.interval <= prompt.tokens - position;) {
      position += policy.interval;
      keep(position);
    }
  }
  for (const std::int64_t offset : policy.from_start) keep_rounded(offset);
  for (const std::int64_t offset : policy.from_end) keep_rounded(prompt.tokens - offset);
  return std::vector<std::int64_t>(kept.begin(), kept.end());
}

absl::StatusOr<std::vector<CallBoundary>> CallBoundaries(absl::Span<const std::int64_t> positions, std::int64_t begin,
                                                         std::int64_t end, std::int64_t chunk_size) {
  if (chunk_size == 0) chunk_size = kDefaultChunkSize;
  if (chunk_size < 1) return Invalid("chunk_size", chunk_size, "be positive");
  if (begin < 0) return Invalid("begin", begin, "not be negative");
  if (end < begin) return Invalid("end", end, absl::StrCat("not come before the begin, ", begin));
  std::vector<CallBoundary> boundaries;
  for (const std::int64_t position : positions) {
    if (position <= begin || position > end) continue;
    const std::int64_t offset = position - begin;
    if (offset % chunk_size != 0 && position != end) continue;
    boundaries.push_back({offset / chunk_size + (offset % chunk_size != 0 ? 1 : 0), position});
  }
  return boundaries;
}

}  // namespace gdpcache
