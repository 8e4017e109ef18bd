#include "server/cache/errors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gdpcache::cache {
namespace {

constexpr absl::string_view kFieldPayload = "gdpcache/field";
constexpr absl::string_view kRetryPayload = "gdpcache/retry_after_ns";
constexpr absl::string_view kResourcePayload = "gdpcache/resource";
constexpr absl::string_view kPositionsPayload = "gdpcache/positions";

// How many differences a message spells out; the details carry all of them.
constexpr std::size_t kDifferencesInMessage = 4;

constexpr std::size_t kMaxNameInMessage = 64;
constexpr std::size_t kMaxResourceName = 128;

// Two strings of any content as one.
absl::Cord EncodePair(absl::string_view first, absl::string_view second) {
  return absl::Cord(absl::StrCat(first.size(), ":", first, second));
}

std::optional<std::pair<std::string, std::string>> DecodePair(const absl::Status& status, absl::string_view payload) {
  const absl::optional<absl::Cord> encoded = status.GetPayload(payload);
  if (!encoded.has_value()) return std::nullopt;
  const std::string text(*encoded);
  const std::pair<absl::string_view, absl::string_view> split = absl::StrSplit(text, absl::MaxSplits(':', 1));
  std::size_t size = 0;
  if (!absl::SimpleAtoi(split.first, &size) || size > split.second.size()) return std::nullopt;
  return std::pair(std::string(split.second.substr(0, size)), std::string(split.second.substr(size)));
}

}  // namespace

std::string Quoted(absl::string_view name) {
  return absl::StrCat("'", absl::CHexEscape(name.substr(0, kMaxNameInMessage)),
                      name.size() > kMaxNameInMessage ? "..." : "", "'");
}

std::string Counted(std::int64_t count, absl::string_view one) {
  return absl::StrCat(count, " ", one, count == 1 ? "" : "s");
}

absl::Status InvalidField(absl::string_view field, absl::string_view description) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, " ", description));
  status.SetPayload(kFieldPayload, EncodePair(field, description));
  return status;
}

absl::Status Exhausted(absl::string_view message, absl::Duration retry_after) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kRetryPayload, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(retry_after))));
  return status;
}

absl::Status ResourceError(absl::StatusCode code, absl::string_view resource_type, absl::string_view resource_name,
                           absl::string_view message) {
  absl::Status status(code, message);
  std::size_t end = std::min(resource_name.size(), kMaxResourceName);
  // Not within a character: half of one would make the details unreadable.
  while (end > 0 && end < resource_name.size() && (static_cast<unsigned char>(resource_name[end]) & 0xC0) == 0x80)
    --end;
  status.SetPayload(kResourcePayload, EncodePair(resource_type, resource_name.substr(0, end)));
  return status;
}

absl::Status PositionMismatch(std::vector<PositionDifference> differences) {
  std::string message;
  for (std::size_t n = 0; n < std::min(differences.size(), kDifferencesInMessage); ++n) {
    const PositionDifference& difference = differences[n];
    absl::StrAppend(&message, n == 0 ? "" : "; ", "expected_positions[", difference.sequence, "] is ",
                    difference.expected, "; slot ", difference.slot, " is at ", difference.actual);
  }
  if (differences.size() > kDifferencesInMessage) {
    absl::StrAppend(&message, "; and ", differences.size() - kDifferencesInMessage, " more");
  }
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kPositionsPayload,
                    absl::Cord(absl::StrJoin(differences, ",", [](std::string* out, const PositionDifference& d) {
                      absl::StrAppend(out, d.sequence, " ", d.slot, " ", d.expected, " ", d.actual);
                    })));
  return status;
}

std::optional<FieldViolation> FieldViolationOf(const absl::Status& status) {
  std::optional<std::pair<std::string, std::string>> pair = DecodePair(status, kFieldPayload);
  if (!pair.has_value()) return std::nullopt;
  return FieldViolation{std::move(pair->first), std::move(pair->second)};
}

std::optional<absl::Duration> RetryAfterOf(const absl::Status& status) {
  const absl::optional<absl::Cord> encoded = status.GetPayload(kRetryPayload);
  std::int64_t nanoseconds = 0;
  if (!encoded.has_value() || !absl::SimpleAtoi(std::string(*encoded), &nanoseconds)) return std::nullopt;
  return absl::Nanoseconds(nanoseconds);
}

std::optional<Resource> ResourceOf(const absl::Status& status) {
  std::optional<std::pair<std::string, std::string>> pair = DecodePair(status, kResourcePayload);
  if (!pair.has_value()) return std::nullopt;
  return Resource{std::move(pair->first), std::move(pair->second)};
}

std::vector<PositionDifference> PositionDifferencesOf(const absl::Status& status) {
  std::vector<PositionDifference> differences;
  const absl::optional<absl::Cord> encoded = status.GetPayload(kPositionsPayload);
  if (!encoded.has_value()) return differences;
  const std::string text(*encoded);
  for (absl::string_view entry : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> numbers = absl::StrSplit(entry, ' ');
    PositionDifference difference;
    if (numbers.size() == 4 && absl::SimpleAtoi(numbers[0], &difference.sequence) &&
        absl::SimpleAtoi(numbers[1], &difference.slot) && absl::SimpleAtoi(numbers[2], &difference.expected) &&
        absl::SimpleAtoi(numbers[3], &difference.actual)) {
      differences.push_back(difference);
    }
  }
  return differences;
}

}  // namespace gdpcache::cache
