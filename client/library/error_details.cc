#include "gdpcache/error_details.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "gdpcache/v1/prefill.pb.h"
#include "google/rpc/error_details.pb.h"

namespace gdpcache {
namespace {

/// The detail of this message type, if the status carries a well-formed one.
template <typename Message>
std::optional<Message> Detail(const absl::Status& status) {
  const auto payload = status.GetPayload(absl::StrCat("type.googleapis.com/", Message::descriptor()->full_name()));
  Message message;
  if (!payload.has_value() || !message.ParseFromString(std::string(*payload))) return std::nullopt;
  return message;
}

}  // namespace

std::vector<FieldViolation> FieldViolations(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  if (const auto detail = Detail<google::rpc::BadRequest>(status)) {
    for (const auto& violation : detail->field_violations()) {
      violations.push_back({violation.field(), violation.description()});
    }
  }
  return violations;
}

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const auto detail = Detail<google::rpc::RetryInfo>(status);
  if (!detail || !detail->has_retry_delay()) return std::nullopt;
  return absl::Seconds(detail->retry_delay().seconds()) + absl::Nanoseconds(detail->retry_delay().nanos());
}

std::vector<PositionMismatch> PositionMismatches(const absl::Status& status) {
  std::vector<PositionMismatch> mismatches;
  if (const auto detail = Detail<v1::PositionMismatch>(status)) {
    for (const auto& slot : detail->slots()) {
      mismatches.push_back({slot.sequence(), slot.slot(), slot.expected(), slot.actual()});
    }
  }
  return mismatches;
}

std::optional<Resource> ResourceOf(const absl::Status& status) {
  const auto detail = Detail<google::rpc::ResourceInfo>(status);
  if (!detail) return std::nullopt;
  return Resource{detail->resource_type(), detail->resource_name(), detail->description()};
}

}  // namespace gdpcache
