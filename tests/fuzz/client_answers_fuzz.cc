// A client whose server answers whatever it likes: any messages, then any status. The first byte chooses the call, the
// second the status; each message has two bytes of length before it. With an error the last message is the status's
// details. Nothing is written outside the memory that the client was given, and every call ends.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gdpcache/client.h"
#include "gdpcache/v1/state_cache.pb.h"
#include "tests/fuzz/require.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache {
namespace {

using fuzz::Require;

struct Script {
  std::vector<std::string> messages;
  grpc::Status status;
};

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

/// Answers a call's first message with the script.
class Answer final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Answer(Script script) : script_(std::move(script)) {
    const std::lock_guard lock(mutex_);  // what has been set up is visible to whoever takes it next
    StartRead(&request_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&request_);
    const std::lock_guard lock(mutex_);
    if (!std::exchange(begun_, true)) NextLocked();
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (!ok) next_ = script_.messages.size();
    NextLocked();
  }
  void OnDone() override {
    { const std::lock_guard lock(mutex_); }
    delete this;
  }

  void NextLocked() {
    if (next_ == script_.messages.size()) return Finish(script_.status);
    frame_ = BufferOf(script_.messages[next_++]);
    StartWrite(&frame_);
  }

  grpc::ByteBuffer request_;
  std::mutex mutex_;  // guards what follows
  const Script script_;
  grpc::ByteBuffer frame_;
  std::size_t next_ = 0;
  bool begun_ = false;
};

class Server final : public grpc::CallbackGenericService {
 public:
  Server() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  const std::string& address() const { return address_; }

  /// From now on every call is answered so.
  void Play(Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
    honest_ = false;
  }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    const std::lock_guard lock(mutex_);
    return new Answer(honest_ ? HonestAnswer(context->method()) : script_);
  }

  static Script HonestAnswer(absl::string_view method) {
    const auto one = [](const google::protobuf::MessageLite& message) {
      return Script{{message.SerializeAsString()}, grpc::Status::OK};
    };
    if (method == "/gdpcache.v1.StateCache/OpenSession") {
      v1::OpenSessionResponse response;
      response.set_session("s");
      response.set_ttl_ms(3'600'000);
      return one(response);
    }
    if (method == "/gdpcache.v1.StateCache/ListCaches") {
      v1::ListCachesResponse response;
      v1::Cache& cache = *response.add_caches();
      cache.set_name("model");
      v1::CacheGeometry& geometry = *cache.mutable_geometry();
      geometry.set_layers(2);
      geometry.set_slots(4);
      geometry.set_heads(1);
      geometry.set_key_dim(2);
      geometry.set_value_dim(3);
      geometry.set_num_householder(1);
      geometry.set_state_dtype(v1::DATA_TYPE_FLOAT32);
      geometry.set_auxiliary_bytes(3);
      return one(response);
    }
    return one(v1::GetServerInfoResponse());
  }

  std::string address_;
  std::mutex mutex_;  // guards what follows
  Script script_;
  bool honest_ = true;
  std::unique_ptr<grpc::Server> server_;
};

/// Memory for a result, between guards.
class Guarded {
 public:
  explicit Guarded(std::size_t size) : bytes_(size + 2 * kGuard, kPattern) {}
  void* data() { return bytes_.data() + kGuard; }
  ~Guarded() {
    const auto intact = [](std::byte byte) { return byte == kPattern; };
    Require(std::all_of(bytes_.begin(), bytes_.begin() + kGuard, intact) &&
                std::all_of(bytes_.end() - kGuard, bytes_.end(), intact),
            "memory beside a result was written");
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256;
  static constexpr std::byte kPattern{0x5A};
  std::vector<std::byte> bytes_;
};

class Target {
 public:
  Target() : client_(Client::Connect(server_.address()).value()) {
    session_.emplace(client_.OpenSession("model", {.client_name = "fuzz", .keep_alive = false}).value());
    spec_.name = "model";
    spec_.geometry = session_->geometry();
    std::ofstream(path("snapshot"), std::ios::binary) << std::string(3'000, 'x');
  }

  void Run(absl::string_view input) {
    if (input.size() < 2) return;
    const int call = static_cast<std::uint8_t>(input[0]) % kCalls;
    const auto code = static_cast<grpc::StatusCode>(static_cast<std::uint8_t>(input[1]) % 17);
    input.remove_prefix(2);
    Script script;
    while (input.size() >= 2) {
      const std::size_t size = std::min<std::size_t>(
          static_cast<std::uint8_t>(input[0]) + 256 * static_cast<std::size_t>(static_cast<std::uint8_t>(input[1])),
          input.size() - 2);
      script.messages.emplace_back(input.substr(2, size));
      input.remove_prefix(2 + size);
    }
    if (code != grpc::StatusCode::OK) {
      std::string details;
      if (!script.messages.empty()) {
        details = script.messages.back();
        script.messages.pop_back();
      }
      // A transfer would try again for a while; CANCELLED without details is what a server that stops looks like.
      const bool broken = code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED;
      const bool tries_again = broken && (call == 3 || call == 16);
      script.status = grpc::Status(tries_again ? grpc::StatusCode::INTERNAL : code, "scripted", details);
    }
    // gRPC hands on no status behind a message that nobody reads: a call of one answer that gets two ends when its time
    // is over.
    const bool streams = (call >= 1 && call <= 4) || call == 16;
    if (!streams && script.messages.size() > 1) script.messages.resize(1);
    server_.Play(std::move(script));
    const absl::Status status = Call(call);
    Require(!absl::IsDeadlineExceeded(status) || code == grpc::StatusCode::DEADLINE_EXCEEDED, "a call does not end");
    FieldViolations(status);
    RetryDelay(status);
    PositionMismatches(status);
    ResourceOf(status);
  }

 private:
  static constexpr int kCalls = 18;
  static constexpr std::int64_t kTokens = 20;
  static constexpr std::size_t kStateBytes = 24;  // [1, 2, 3] float32

  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

  absl::Status Call(int call) {
    const CallOptions options{.timeout = absl::Seconds(30)};
    const std::string key = "0123456789abcdef";
    switch (call) {
      case 0:
        return Prefill(Transport::kUnary, options);
      case 1:
        return Prefill(Transport::kStream, options);
      case 2:
        return ReadSlots(options);
      case 3:
        return client_.ExportSnapshot("model", key, path("exported"), options).status();
      case 4: {
        SnapshotWatch watch = client_.WatchSnapshots("model", true, options);
        while (true) {
          const auto events = watch.Next();
          if (!events.ok()) return events.status();
        }
      }
      case 5:
        return client_.LookupPrefix("model", {key, key + "1"}, absl::Seconds(1), options).status();
      case 6:
        return client_.GetServerInfo(options).status();
      case 7:
        return client_.GetServerStats(options).status();
      case 8:
        return client_.ListCaches(options).status();
      case 9:
        return client_.ListSlots("model", options).status();
      case 10:
        return client_.ListSnapshots("model", 10, "", options).status();
      case 11: {  // its end is answered so, too
        absl::StatusOr<Session> session =
            client_.OpenSession("model", {.client_name = "fuzz", .keep_alive = false}, options);
        return session.ok() ? session->ReadSlots({0}, {}, {}, options).status() : session.status();
      }
      case 12:
        return session_->AcquireSlots(2, options).status();
      case 13:
        return session_->RestoreSnapshots({{key, {0, 1}}}, "", options).status();
      case 14:
        return session_->SaveSnapshots({{0, key}}, options).status();
      case 15:
        return session_->KeepAlive(options).status();
      case 16:
        return client_.ImportSnapshot("model", path("snapshot"), key, options).status();
      default:
        return client_.CreateCache(spec_, options).status();
    }
  }

  absl::Status Prefill(Transport transport, const CallOptions& options) {
    const std::array<float, kTokens* 3> zeros = {};
    const std::vector<std::int64_t> slots = {0};
    Guarded h(2 * kStateBytes);
    Guarded final_state(kStateBytes);
    PrefillCall call;
    call.k = call.w = {DataType::kFloat32, {kTokens, 1, 2}, zeros.data()};
    call.u = {DataType::kFloat32, {kTokens, 1, 3}, zeros.data()};
    call.chunk_size = 16;
    call.state_indices = slots;
    call.save_new_value = true;
    call.output_final_state = true;
    call.states = States::kAll;
    call.transport = transport;
    call.outputs.h = Tensor{DataType::kFloat32, {2, 1, 2, 3}, h.data()};
    call.outputs.final_state = Tensor{DataType::kFloat32, {1, 1, 2, 3}, final_state.data()};
    const absl::StatusOr<PrefillResult> result = session_->Prefill(call, options);
    if (result.ok()) Require(result->v_new.byte_size() == kTokens * 3 * 4, "v_new has another size");
    return result.status();
  }

  absl::Status ReadSlots(const CallOptions& options) {
    Guarded state(4 * kStateBytes);
    SlotOutputs outputs;
    outputs.state = Tensor{DataType::kFloat32, {2, 2, 1, 2, 3}, state.data()};
    const absl::StatusOr<SlotContents> contents = session_->ReadSlots({0, 1}, {}, outputs, options);
    if (contents.ok()) Require(contents->auxiliary.byte_size() == 12, "auxiliary has another size");
    return contents.status();
  }

  Server server_;
  const test::TemporaryDirectory directory_;
  Client client_;
  std::optional<Session> session_;
  CacheSpec spec_;
};

}  // namespace
}  // namespace gdpcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto& target = *new gdpcache::Target();
  target.Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
