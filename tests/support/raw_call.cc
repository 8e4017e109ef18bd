#include "tests/support/raw_call.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <chrono>
#include <vector>

namespace gdpcache::test {
namespace {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::string bytes;
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

}  // namespace

RawAnswer CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& bytes,
                  const RawMetadata& metadata) {
  RawStream stream(channel, method, bytes, metadata);
  RawAnswer answer;
  answer.bytes = stream.Read().value_or("");
  answer.status = stream.Finish();
  return answer;
}

RawStream::RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& request, const RawMetadata& metadata) {
  for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  stream_ = grpc::GenericStub(channel).PrepareCall(&context_, method, &queue_);
  stream_->StartCall(nullptr);
  if (!Next()) return;
  const grpc::Slice slice(request);
  stream_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  Next();
}

RawStream::~RawStream() {
  context_.TryCancel();
  if (!finished_) Finish();
  queue_.Shutdown();
  while (Next()) {
  }
}

std::optional<std::string> RawStream::Read() {
  grpc::ByteBuffer message;
  stream_->Read(&message, nullptr);
  if (!Next()) return std::nullopt;
  return BytesOf(message);
}

grpc::Status RawStream::Finish() {
  grpc::Status status;
  stream_->Finish(&status, nullptr);
  Next();
  finished_ = true;
  return status;
}

// Waits for the operation just started; whether it did what it should.
bool RawStream::Next() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
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
