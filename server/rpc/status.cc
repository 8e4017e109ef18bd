#include "server/rpc/status.h"

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gdpcache/v1/prefill.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/cache/errors.h"

namespace gdpcache::rpc {
namespace {

constexpr std::size_t kMaxMessageBytes = 512;
constexpr std::size_t kMaxPositionBytes = 3 << 10;

// At most `limit` bytes of `text`, without half a UTF-8 character at the end.
std::string Cut(absl::string_view text, std::size_t limit) {
  if (text.size() <= limit) return std::string(text);
  constexpr absl::string_view kEllipsis = "...";
  std::size_t end = limit - kEllipsis.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  std::string cut(text.substr(0, end));
  cut.append(kEllipsis.data(), kEllipsis.size());
  return cut;
}

void AddDetails(const absl::Status& status, google::rpc::Status& wire) {
  if (const std::optional<cache::FieldViolation> violation = cache::FieldViolationOf(status)) {
    google::rpc::BadRequest bad_request;
    google::rpc::BadRequest::FieldViolation& field = *bad_request.add_field_violations();
    field.set_field(Cut(violation->field, kMaxMessageBytes));
    field.set_description(Cut(violation->description, kMaxMessageBytes));
    wire.add_details()->PackFrom(bad_request);
  }
  if (const std::optional<absl::Duration> retry_after = cache::RetryAfterOf(status)) {
    google::rpc::RetryInfo retry_info;
    absl::Duration rest;
    retry_info.mutable_retry_delay()->set_seconds(absl::IDivDuration(*retry_after, absl::Seconds(1), &rest));
    retry_info.mutable_retry_delay()->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(rest)));
    wire.add_details()->PackFrom(retry_info);
  }
  if (const std::optional<cache::Resource> resource = cache::ResourceOf(status)) {
    google::rpc::ResourceInfo resource_info;
    resource_info.set_resource_type(resource->type);
    resource_info.set_resource_name(Cut(resource->name, kMaxMessageBytes));
    wire.add_details()->PackFrom(resource_info);
  }
  v1::PositionMismatch mismatch;
  for (const cache::PositionDifference& difference : cache::PositionDifferencesOf(status)) {
    v1::PositionMismatch::Slot& slot = *mismatch.add_slots();
    slot.set_sequence(difference.sequence);
    slot.set_slot(difference.slot);
    slot.set_expected(difference.expected);
    slot.set_actual(difference.actual);
    if (mismatch.ByteSizeLong() > kMaxPositionBytes) {
      mismatch.mutable_slots()->RemoveLast();
      break;
    }
  }
  if (mismatch.slots_size() > 0) wire.add_details()->PackFrom(mismatch);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());  // the same numbers
  const std::string message = Cut(status.message(), kMaxMessageBytes);
  google::rpc::Status wire;
  AddDetails(status, wire);
  if (wire.details_size() == 0) return grpc::Status(code, message);
  wire.set_code(static_cast<int>(code));
  wire.set_message(message);
  return grpc::Status(code, message, wire.SerializeAsString());
}

}  // namespace gdpcache::rpc
