#include "client/library/health.h"

#include <string>

#include "client/library/raw_call.h"
#include "client/library/status_conversion.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"

namespace gdpcache::client {
namespace {

using google::protobuf::internal::WireFormatLite;

/// HealthCheckRequest is { string service = 1 }; without one it asks for the whole server.
constexpr int kServiceField = 1;

/// HealthCheckResponse is { ServingStatus status = 1 } with SERVING = 1 and NOT_SERVING = 2.
constexpr std::uint32_t kStatusTag = WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_VARINT);

std::string RequestFor(HealthQuestion question) {
  std::string request;
  if (question == HealthQuestion::kAlive) return request;
  {
    google::protobuf::io::StringOutputStream bytes(&request);
    google::protobuf::io::CodedOutputStream out(&bytes);
    WireFormatLite::WriteString(kServiceField, v1::StateCache::service_full_name(), &out);
  }  // it is complete when they have gone
  return request;
}

}  // namespace

absl::StatusOr<ServingStatus> AskHealth(const Connection& connection, HealthQuestion question, absl::Time deadline) {
  const grpc::Slice request(RequestFor(question));
  grpc::ByteBuffer answer;
  const absl::Status status =
      RunUnary(connection, "/grpc.health.v1.Health/Check", deadline, grpc::ByteBuffer(&request, 1), &answer);
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
