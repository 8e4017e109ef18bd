#include "client/command/bench/byte_pump.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gdpcache::bench {
namespace {

constexpr std::int64_t kFrameBytes = std::int64_t{1} << 20;
constexpr char kBytesWanted[] = "bytes-wanted";  // metadata: how many bytes the server is to send

/// What everybody sends: more than a cache holds, so that the bytes come from memory, as a caller's tensors do.
const std::vector<char>& Payload() {
  static const std::vector<char> kPayload(std::size_t{256} << 20, '\1');
  return kPayload;
}

/// What one side still has to send, cut into frames that point into the payload.
class FrameSource {
 public:
  explicit FrameSource(std::int64_t bytes) : bytes_left_(bytes) {}

  /// The next frame, valid until the next call; none when all has been handed out.
  const grpc::ByteBuffer* Next() {
    if (bytes_left_ == 0) return nullptr;
    const std::int64_t size = std::min(bytes_left_, kFrameBytes);
    if (offset_ + size > static_cast<std::int64_t>(Payload().size())) offset_ = 0;
    const grpc::Slice slice(Payload().data() + offset_, static_cast<std::size_t>(size), grpc::Slice::STATIC_SLICE);
    frame_ = grpc::ByteBuffer(&slice, 1);
    offset_ += size;
    bytes_left_ -= size;
    return &frame_;
  }

 private:
  std::int64_t offset_ = 0;
  std::int64_t bytes_left_;
  grpc::ByteBuffer frame_;
};

class ServerSide final : public grpc::ServerGenericBidiReactor {
 public:
  explicit ServerSide(std::int64_t bytes_to_send) : source_(bytes_to_send) {
    const std::lock_guard lock(mutex_);
    StartRead(&received_);
    Send();
  }

  void OnReadDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (ok) {
      StartRead(&received_);
    } else {
      all_received_ = true;
      FinishWhenDone();
    }
  }

  void OnWriteDone(bool /*ok*/) override {
    const std::lock_guard lock(mutex_);
    Send();
  }

  void OnDone() override { delete this; }

 private:
  void Send() {
    if (const grpc::ByteBuffer* frame = source_.Next(); frame != nullptr) {
      StartWrite(frame);
    } else {
      all_sent_ = true;
      FinishWhenDone();
    }
  }

  void FinishWhenDone() {
    if (all_sent_ && all_received_) Finish(grpc::Status::OK);
  }

  std::mutex mutex_;
  FrameSource source_;
  grpc::ByteBuffer received_;
  bool all_sent_ = false;
  bool all_received_ = false;
};

class ClientSide final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit ClientSide(std::int64_t bytes_to_send) : source_(bytes_to_send) {}

  /// Runs the call that this reactor was given to, and returns the number of bytes received.
  absl::StatusOr<std::int64_t> Run() {
    std::unique_lock lock(mutex_);
    StartRead(&frame_);
    Send();
    StartCall();
    done_.wait(lock, [this] { return status_.has_value(); });
    if (!status_->ok()) return absl::InternalError(status_->error_message());
    return received_bytes_;
  }

  void OnReadDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (!ok) return;
    received_bytes_ += static_cast<std::int64_t>(frame_.Length());
    StartRead(&frame_);
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (ok) Send();
  }

  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
    done_.notify_all();
  }

 private:
  void Send() {
    if (const grpc::ByteBuffer* frame = source_.Next(); frame != nullptr) {
      StartWrite(frame);
    } else {
      StartWritesDone();
    }
  }

  std::mutex mutex_;
  std::condition_variable done_;
  FrameSource source_;
  grpc::ByteBuffer frame_;
  std::int64_t received_bytes_ = 0;
  std::optional<grpc::Status> status_;
};

class Service final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    std::int64_t bytes = 0;
    const auto wanted = context->client_metadata().find(kBytesWanted);
    if (wanted != context->client_metadata().end()) {
      static_cast<void>(absl::SimpleAtoi({wanted->second.data(), wanted->second.size()}, &bytes));
    }
    return new ServerSide(bytes);
  }
};

class GrpcBytePump final : public BytePump {
 public:
  explicit GrpcBytePump(const std::string& listen) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    int port = 0;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    const std::string address =
        listen.rfind("unix:", 0) == 0 ? listen : absl::StrCat(listen.substr(0, listen.rfind(':') + 1), port);
    stub_ = std::make_unique<grpc::GenericStub>(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }

  ~GrpcBytePump() override {
    if (serving()) server_->Shutdown();
  }

  bool serving() const { return server_ != nullptr; }

  absl::StatusOr<absl::Duration> Run(std::int64_t up, std::int64_t down) override {
    grpc::ClientContext context;
    context.AddMetadata(kBytesWanted, absl::StrCat(down));
    ClientSide client(up);
    const absl::Time start = absl::Now();
    stub_->PrepareBidiStreamingCall(&context, "/pump", {}, &client);
    const absl::StatusOr<std::int64_t> received = client.Run();
    const absl::Duration elapsed = absl::Now() - start;
    if (!received.ok()) return received.status();
    if (*received != down) return absl::InternalError(absl::StrCat("received ", *received, " bytes of ", down));
    return elapsed;
  }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BytePump>> BytePump::Start(const std::string& listen) {
  Payload();  // not within the first call's time
  auto pump = std::make_unique<GrpcBytePump>(listen);
  if (!pump->serving()) return absl::UnavailableError(absl::StrCat("cannot serve the byte pump on ", listen));
  return pump;
}

}  // namespace gdpcache::bench
