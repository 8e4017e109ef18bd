#ifndef GDPCACHE_ERROR_DETAILS_H_
#define GDPCACHE_ERROR_DETAILS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

/// What the server adds to an error beyond its code and message. Each function reads one kind of detail out of a status
/// that a call of this library returned, and finds nothing in any other.
namespace gdpcache {

/// A field of the request that was wrong (INVALID_ARGUMENT).
struct FieldViolation {
  std::string field;  // path in the request, for instance "state_indices[3]"
  std::string description;
};
std::vector<FieldViolation> FieldViolations(const absl::Status& status);

/// How long to wait before trying again (RESOURCE_EXHAUSTED).
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

/// A slot that was not at the position its caller expected (FAILED_PRECONDITION). If `actual` is the position that an
/// earlier call without an answer would have reached, that call was applied.
struct PositionMismatch {
  std::int64_t sequence = 0;
  std::int64_t slot = 0;
  std::int64_t expected = 0;
  std::int64_t actual = 0;
};
std::vector<PositionMismatch> PositionMismatches(const absl::Status& status);

/// What the call was about (NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED).
struct Resource {
  std::string type;  // "cache", "session" or "slot"
  std::string name;
  std::string description;
};
std::optional<Resource> ResourceOf(const absl::Status& status);

}  // namespace gdpcache

#endif  // GDPCACHE_ERROR_DETAILS_H_
