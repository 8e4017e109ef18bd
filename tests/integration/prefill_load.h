#ifndef GDPCACHE_TESTS_INTEGRATION_PREFILL_LOAD_H_
#define GDPCACHE_TESTS_INTEGRATION_PREFILL_LOAD_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gdpcache/client.h"
#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/support/server_process.h"

/// Engines at work while something happens to their server.
namespace gdpcache::test {

/// A prefill that always begins at zero, so that every answer to it has the same bits, whoever sends it and however.
class SamePrefill {
 public:
  /// Of one sequence, K = V = `dim`.
  explicit SamePrefill(std::int64_t dim = 32, std::int64_t tokens = 256)
      : dim_(dim), tokens_(tokens), values_(static_cast<std::size_t>(tokens * kHeads * dim)) {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i * 31 % 1'001) / 4'000 - 0.125F;
  }

  std::int64_t tokens() const { return tokens_; }

  /// A cache for it.
  CacheSpec Cache() const {
    CacheSpec spec;
    spec.name = "load";
    spec.geometry = {.layers = 1, .slots = 16, .heads = kHeads, .key_dim = dim_, .value_dim = dim_};
    return spec;
  }

  /// A session on its cache, which is made if it is not there.
  absl::StatusOr<Session> OpenSession(const std::string& address, const ClientOptions& options) const {
    const absl::StatusOr<Client> client = Client::Connect(address, options);
    if (!client.ok()) return client.status();
    if (const auto created = client->CreateCache(Cache()); !created.ok()) return created.status();
    return client->OpenSession("load");
  }

  /// The bits of v_new and of the final state.
  absl::StatusOr<std::string> Run(Session& session, const std::vector<std::int64_t>& slots, Transport transport) const {
    PrefillCall call;
    call.k = {DataType::kFloat32, {tokens_, kHeads, dim_}, values_.data()};
    call.w = call.k;
    call.u = call.k;
    call.state_indices = slots;
    call.initial_state_source = InitialState::kZero;
    call.save_new_value = true;
    call.output_final_state = true;
    call.transport = transport;
    const absl::StatusOr<PrefillResult> result = session.Prefill(call);
    if (!result.ok()) return result.status();
    return Bytes(result->v_new) + Bytes(result->final_state);
  }

  /// The same as the first frame of a stream, and as those that follow.
  v1::PrefillFrame Header(const std::string& session, std::int64_t slot) const {
    v1::PrefillFrame frame;
    v1::PrefillRequest& request = *frame.mutable_request();
    request.set_session(session);
    for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_w(), request.mutable_u()}) {
      tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
      for (const std::int64_t size : {tokens_, kHeads, dim_}) tensor->add_shape(size);
    }
    request.add_state_indices(slot);
    request.set_initial_state_source(v1::INITIAL_STATE_SOURCE_ZERO);
    request.set_save_new_value(true);
    request.set_output_final_state(true);
    return frame;
  }
  /// Tokens [begin, end).
  v1::PrefillFrame Data(v1::TensorId tensor, std::int64_t begin, std::int64_t end) const {
    const std::int64_t row = kHeads * dim_ * static_cast<std::int64_t>(sizeof(float));
    v1::PrefillFrame frame;
    frame.mutable_data()->set_tensor(tensor);
    frame.mutable_data()->set_offset(static_cast<std::uint64_t>(begin * row));
    frame.mutable_data()->set_payload(reinterpret_cast<const char*>(values_.data()) + begin * row,
                                      static_cast<std::size_t>((end - begin) * row));
    return frame;
  }

 private:
  static constexpr std::int64_t kHeads = 2;

  static std::string Bytes(const OwnedTensor& tensor) {
    return {reinterpret_cast<const char*>(tensor.data()), static_cast<std::size_t>(tensor.byte_size())};
  }

  const std::int64_t dim_;
  const std::int64_t tokens_;
  std::vector<float> values_;
};

/// Engines that prefill without a pause until the block ends, in one message and as streams, each in a session that
/// lasts and in a new one, on a new connection, for every other call. No call may fail and all answers are the same.
class PrefillLoad {
 public:
  PrefillLoad(std::string address, ClientOptions options) : address_(std::move(address)), options_(std::move(options)) {
    options_.connect_timeout = absl::Seconds(60);  // however busy the machine is
    for (const Transport transport : {Transport::kUnary, Transport::kStream}) {
      engines_.emplace_back([this, transport] { Work(transport); });
    }
  }
  PrefillLoad(const PrefillLoad&) = delete;
  PrefillLoad& operator=(const PrefillLoad&) = delete;
  ~PrefillLoad() {
    stop_ = true;
    for (std::thread& engine : engines_) engine.join();
    EXPECT_GT(answers_, 10);
  }

  int answers() const { return answers_; }

  /// That `bits` are those of the other answers.
  void Check(const absl::StatusOr<std::string>& bits) {
    ASSERT_TRUE(bits.ok()) << "answer " << answers_ << ": " << bits.status();
    const std::lock_guard lock(mutex_);
    if (!expected_.has_value()) expected_ = *bits;
    EXPECT_TRUE(*bits == *expected_) << "answer " << answers_ << " differs";
    ++answers_;
  }

 private:
  /// One session with its slot.
  struct Engine {
    Engine(const SamePrefill& call, const std::string& address, const ClientOptions& options)
        : session(call.OpenSession(address, options)) {
      if (session.ok()) slots = session->AcquireSlots(1);
    }
    absl::StatusOr<std::string> Prefill(const SamePrefill& call, Transport transport) {
      if (!session.ok()) return session.status();
      if (!slots.ok()) return slots.status();
      return call.Run(*session, *slots, transport);
    }

    absl::StatusOr<Session> session;
    absl::StatusOr<std::vector<std::int64_t>> slots;
  };

  void Work(Transport transport) {
    Engine lasting(call_, address_, options_);
    while (!stop_ && !testing::Test::HasFailure()) {
      Check(lasting.Prefill(call_, transport));
      Check(Engine(call_, address_, options_).Prefill(call_, transport));
    }
  }

  const std::string address_;
  ClientOptions options_;
  const SamePrefill call_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> answers_ = 0;
  std::mutex mutex_;
  std::optional<std::string> expected_;  // guarded by mutex_
  std::vector<std::thread> engines_;
};

/// A stream whose client has sent half of the call and goes on when it is told to.
class HalfSentPrefill {
 public:
  HalfSentPrefill(const std::string& address, const ClientOptions& options,
                  const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : session_(call_.OpenSession(address, options)), stub_(v1::StateCache::NewStub(Connect(address, credentials))) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    EXPECT_TRUE(session_.ok()) << session_.status();
    if (!session_.ok()) return;
    const absl::StatusOr<std::vector<std::int64_t>> slots = session_->AcquireSlots(1);
    EXPECT_TRUE(slots.ok()) << slots.status();
    if (!slots.ok()) return;
    stream_ = stub_->PrefillStream(&context_);
    EXPECT_TRUE(stream_->Write(call_.Header(session_->id(), slots->front())));
    Send(0, call_.tokens() / 2);
  }

  /// Whether the server has it under way.
  bool IsUnderWay() {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    const grpc::Status status = stub_->GetServerInfo(&context, {}, &info);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return info.staging_used_bytes() > 0;
  }

  /// As SamePrefill::Run.
  absl::StatusOr<std::string> Finish() {
    if (stream_ == nullptr) return absl::FailedPreconditionError("it was not begun");
    Send(call_.tokens() / 2, call_.tokens());
    stream_->WritesDone();
    std::string v_new;
    std::string final_state;
    v1::PrefillFrame frame;
    while (stream_->Read(&frame)) {
      if (!frame.has_data()) continue;
      (frame.data().tensor() == v1::TENSOR_ID_V_NEW ? v_new : final_state) += frame.data().payload();
    }
    const grpc::Status status = stream_->Finish();
    if (!status.ok()) return absl::UnknownError(status.error_message());
    return v_new + final_state;
  }

 private:
  void Send(std::int64_t begin, std::int64_t end) {
    for (const v1::TensorId tensor : {v1::TENSOR_ID_K, v1::TENSOR_ID_W, v1::TENSOR_ID_U}) {
      stream_->Write(call_.Data(tensor, begin, end));  // whether it arrived is for Finish to say
    }
  }

  const SamePrefill call_;
  absl::StatusOr<Session> session_;
  const std::unique_ptr<v1::StateCache::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::PrefillFrame, v1::PrefillFrame>> stream_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_INTEGRATION_PREFILL_LOAD_H_
