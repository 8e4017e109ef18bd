#ifndef GDPCACHE_SERVER_CACHE_ERRORS_H_
#define GDPCACHE_SERVER_CACHE_ERRORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

/// The errors that carry more than a code and a message. The details ride on the absl::Status as payloads; the gRPC
/// edge turns them into google.rpc messages.
namespace gdpcache::cache {

/// A name somebody sent, for a message: in quotes, escaped, cut when long.
std::string Quoted(absl::string_view name);

/// "1 slot", "2 slots".
std::string Counted(std::int64_t count, absl::string_view one);

/// INVALID_ARGUMENT about one request field, e.g. ("state_indices[3]", "is 17; the cache has 8 slots").
absl::Status InvalidField(absl::string_view field, absl::string_view description);

/// RESOURCE_EXHAUSTED that is worth another try after `retry_after`.
absl::Status Exhausted(absl::string_view message, absl::Duration retry_after);

/// `code` about a named "cache", "session" or "slot". A long name is cut.
absl::Status ResourceError(absl::StatusCode code, absl::string_view resource_type, absl::string_view resource_name,
                           absl::string_view message);

struct PositionDifference {
  std::int64_t sequence = 0;
  std::int64_t slot = 0;
  std::int64_t expected = 0;
  std::int64_t actual = 0;
};

/// FAILED_PRECONDITION listing every slot whose position is not the one expected.
absl::Status PositionMismatch(std::vector<PositionDifference> differences);

struct FieldViolation {
  std::string field;
  std::string description;
};

struct Resource {
  std::string type;
  std::string name;
};

/// The details of a status made above; empty where it has none of that kind.
std::optional<FieldViolation> FieldViolationOf(const absl::Status& status);
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status);
std::optional<Resource> ResourceOf(const absl::Status& status);
std::vector<PositionDifference> PositionDifferencesOf(const absl::Status& status);

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_ERRORS_H_
