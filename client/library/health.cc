#include "client/library/health.h"

#include "client/library/raw_call.h"
#include "client/library/status_conversion.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"

namespace gdpcache::client {
namespace {

using google::protobuf::internal::WireFormatLite;

/// HealthCheckResponse is { ServingStatus status = 1 } with SERVING = 1 and NOT_SERVING = 2.
constexpr std::uint32_t kStatusTag = WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_VARINT);

}  // namespace

absl::StatusOr<ServingStatus> AskHealth(const Connection& connection, absl::Time deadline) {
  const grpc::Slice empty;  // a HealthCheckRequest without a service name asks for the whole server
  grpc::ByteBuffer answer;
  const absl::Status status =
      RunUnary(connection, "/grpc.health.v1.Health/Check", deadline, grpc::ByteBuffer(&empty, 1), &answer);
  if (!status.ok()) return status;
  grpc::ProtoBufferReader reader(&answer);
  google::protobuf::io::CodedInputStream in(&reader);
  std::uint32_t value = 0;
  if (answer.Length() == 0) return ServingStatus::kUnknown;
  if (in.ReadTag() != kStatusTag || !in.ReadVarint32(&value)) return ProtocolError("a malformed health answer");
  if (value == 1) return ServingStatus::kServing;
  return value == 2 ? ServingStatus::kNotServing : ServingStatus::kUnknown;
}

}  // namespace gdpcache::client
