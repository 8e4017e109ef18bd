#include "client/library/raw_call.h"

#include <memory>

#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"

namespace gdpcache::client {
namespace {

/// What an event of the completion queue is about.
enum Operation : int { kStart, kWrite, kRead, kFinish };

void* Tag(Operation operation) {
  static constexpr Operation kOperations[] = {kStart, kWrite, kRead, kFinish};
  return const_cast<Operation*>(&kOperations[operation]);
}

}  // namespace

absl::Status RunUnary(const Connection& connection, const std::string& method, absl::Time deadline,
                      const grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
  grpc::ClientContext context;
  Connection::SetDeadline(deadline, &context);
  grpc::CompletionQueue queue;
  grpc::Status status;
  const std::unique_ptr<grpc::GenericClientAsyncResponseReader> call =
      connection.raw_stub().PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  call->Finish(response, &status, Tag(kFinish));
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return connection.Annotate(status);
}

absl::Status RunStream(const Connection& connection, const std::string& method, absl::Time deadline,
                       absl::FunctionRef<bool(grpc::ByteBuffer*)> next,
                       absl::FunctionRef<absl::Status(grpc::ByteBuffer&)> receive) {
  grpc::ClientContext context;
  Connection::SetDeadline(deadline, &context);
  grpc::CompletionQueue queue;
  grpc::Status status;
  grpc::ByteBuffer incoming;
  absl::Status receive_error;
  const std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call =
      connection.raw_stub().PrepareCall(&context, method, &queue);

  // At most one write and one read are under way, each starting the following one when it completes. The last read
  // fails, whatever ended the call, and asks for the status; writes fail or complete on their own.
  const auto write = [&] {
    grpc::ByteBuffer outgoing;
    if (next(&outgoing)) {
      call->Write(outgoing, Tag(kWrite));
    } else {
      call->WritesDone(Tag(kFinish));
    }
  };
  int finishing = 2;  // the status and the end of the writes
  call->StartCall(Tag(kStart));
  void* tag = nullptr;
  bool ok = false;
  while (finishing > 0 && queue.Next(&tag, &ok)) {
    switch (*static_cast<const Operation*>(tag)) {
      case kStart:
        call->Read(&incoming, Tag(kRead));
        [[fallthrough]];
      case kWrite:
        if (ok) {
          write();
        } else {
          --finishing;
        }
        break;
      case kRead:
        if (ok) receive_error = receive(incoming);
        if (ok && receive_error.ok()) {
          call->Read(&incoming, Tag(kRead));
          break;
        }
        if (!receive_error.ok()) context.TryCancel();
        call->Finish(&status, Tag(kFinish));
        break;
      case kFinish:
        --finishing;
        break;
    }
  }
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return receive_error.ok() ? connection.Annotate(status) : receive_error;
}

}  // namespace gdpcache::client
