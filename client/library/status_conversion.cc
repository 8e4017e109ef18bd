#include "client/library/status_conversion.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/status.pb.h"

namespace gdpcache::client {

absl::Status ToAbslStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // The codes of both are the same numbers; whatever a peer makes up beyond them is UNKNOWN.
  const int code = status.error_code();
  const bool known = code > 0 && code <= static_cast<int>(grpc::StatusCode::UNAUTHENTICATED);
  absl::Status result(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, status.error_message());
  google::rpc::Status details;
  if (!status.error_details().empty() && details.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& detail : details.details()) {
      result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return result;
}

absl::Status ProtocolError(absl::string_view message) {
  return absl::InternalError(absl::StrCat("the server broke the protocol: ", message));
}

}  // namespace gdpcache::client
