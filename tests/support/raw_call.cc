#include "tests/support/raw_call.h"

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <chrono>
#include <future>
#include <vector>

namespace gdpcache::test {

RawAnswer CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& bytes) {
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  std::promise<grpc::Status> done;
  grpc::GenericStub(channel).UnaryCall(&context, method, {}, &request, &response,
                                       [&done](const grpc::Status& status) { done.set_value(status); });
  RawAnswer answer;
  answer.status = done.get_future().get();
  std::vector<grpc::Slice> slices;
  if (answer.status.ok() && response.Dump(&slices).ok()) {
    for (const grpc::Slice& piece : slices) {
      answer.bytes.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
    }
  }
  return answer;
}

int CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  // HealthCheckRequest { string service = 1; }, HealthCheckResponse { ServingStatus status = 1; }
  std::string request;
  if (!service.empty()) request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  const RawAnswer answer = CallRaw(channel, "/grpc.health.v1.Health/Check", request);
  if (!answer.status.ok() || answer.bytes.size() != 2 || answer.bytes[0] != 0x08) return -1;
  return answer.bytes[1];
}

}  // namespace gdpcache::test
