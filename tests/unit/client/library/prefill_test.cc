#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/library/fake_server.h"

namespace gdpcache {
namespace {

using ::gdpcache::test::FakeServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kDim = 64;

std::string Bytes(const OwnedTensor& tensor) {
  return std::string(reinterpret_cast<const char*>(tensor.data()), static_cast<std::size_t>(tensor.byte_size()));
}

void SetTensor(v1::Tensor* tensor, v1::DataType dtype, const std::vector<std::int64_t>& shape) {
  tensor->set_dtype(dtype);
  tensor->mutable_shape()->Assign(shape.begin(), shape.end());
}

/// A session on a fake server, and a call of `tokens` tokens that asks for everything. The server's answer to it is
/// u for v_new and the other results filled with one byte each.
class PrefillTest : public ::testing::Test {
 protected:
  PrefillTest() {
    server_.geometry.set_layers(1);
    server_.geometry.set_heads(kHeads);
    server_.geometry.set_key_dim(kDim);
    server_.geometry.set_value_dim(kDim);
    server_.geometry.set_num_householder(1);
  }

  Session& session() {
    if (!session_.ok()) session_ = Client::Connect(server_.address())->OpenSession("model");
    EXPECT_TRUE(session_.ok()) << session_.status();
    return *session_;
  }

  absl::StatusOr<PrefillResult> Prefill(const PrefillCall& call, const CallOptions& options = {}) {
    absl::StatusOr<PrefillResult> result = session().Prefill(call, options);
    server_.Change([] {});  // what the handler has read may be gone from here on
    return result;
  }

  PrefillCall Call(std::int64_t tokens) {
    server_.Change([this, tokens] {
      tokens_ = tokens;
      k_.resize(static_cast<std::size_t>(tokens * kHeads * kDim * 2));
      u_.resize(k_.size());
      for (std::size_t i = 0; i < k_.size(); ++i) {
        k_[i] = static_cast<char>(i * 7);
        u_[i] = static_cast<char>(i * 11);
      }
      g_.resize(static_cast<std::size_t>(tokens * kHeads * 4), 'g');
    });
    PrefillCall call;
    call.k = {DataType::kBFloat16, {tokens, kHeads, kDim}, k_.data()};
    call.w = call.k;
    call.u = {DataType::kBFloat16, {tokens, kHeads, kDim}, u_.data()};
    call.g = ConstTensor{DataType::kFloat32, {tokens, kHeads}, g_.data()};
    call.state_indices = slots_;
    call.save_new_value = true;
    call.output_final_state = true;
    call.states = States::kAll;
    return call;
  }

  std::int64_t boundaries() const { return (tokens_ + 63) / 64; }
  static std::int64_t StateSize() { return kHeads * kDim * kDim; }

  /// The response's header.
  void FillHeader(v1::PrefillResponse* response) const {
    SetTensor(response->mutable_h(), v1::DATA_TYPE_BFLOAT16, {boundaries(), kHeads, kDim, kDim});
    SetTensor(response->mutable_v_new(), v1::DATA_TYPE_BFLOAT16, {tokens_, kHeads, kDim});
    SetTensor(response->mutable_final_state(), v1::DATA_TYPE_FLOAT32, {1, kHeads, kDim, kDim});
    response->add_chunk_offsets(0);
    response->add_chunk_offsets(boundaries());
    response->add_positions(tokens_);
    response->mutable_timing()->set_compute_us(42);
  }

  std::string H() const { return std::string(static_cast<std::size_t>(boundaries() * StateSize() * 2), 'h'); }
  static std::string FinalState() { return std::string(static_cast<std::size_t>(StateSize() * 4), 'f'); }

  grpc::Status AnswerUnary(const v1::PrefillRequest& request, v1::PrefillResponse* response) const {
    FillHeader(response);
    response->mutable_h()->set_inline_(H());
    response->mutable_v_new()->set_inline_(request.u().inline_());
    response->mutable_final_state()->set_inline_(FinalState());
    return grpc::Status::OK;
  }

  /// Everything the client sends, by tensor; the first frame's request in `*request`.
  static std::map<v1::TensorId, std::string> Receive(FakeServer::PrefillStream* stream, v1::PrefillRequest* request) {
    std::map<v1::TensorId, std::string> tensors;
    v1::PrefillFrame frame;
    EXPECT_TRUE(stream->Read(&frame));
    EXPECT_TRUE(frame.has_request());
    *request = frame.request();
    while (stream->Read(&frame)) {
      EXPECT_TRUE(frame.has_data());
      std::string& bytes = tensors[frame.data().tensor()];
      EXPECT_EQ(frame.data().offset(), bytes.size());
      bytes += frame.data().payload();
    }
    return tensors;
  }

  static void Send(FakeServer::PrefillStream* stream, v1::TensorId tensor, const std::string& bytes,
                   std::size_t piece = 100'000) {
    for (std::size_t offset = 0; offset < bytes.size(); offset += piece) {
      v1::PrefillFrame frame;
      frame.mutable_data()->set_tensor(tensor);
      frame.mutable_data()->set_offset(offset);
      frame.mutable_data()->set_payload(bytes.substr(offset, piece));
      stream->Write(frame);
    }
  }

  void SendResponse(FakeServer::PrefillStream* stream) const {
    v1::PrefillFrame frame;
    FillHeader(frame.mutable_response());
    stream->Write(frame);
  }

  grpc::Status AnswerStream(FakeServer::PrefillStream* stream) const {
    v1::PrefillRequest request;
    const std::map<v1::TensorId, std::string> tensors = Receive(stream, &request);
    Send(stream, v1::TENSOR_ID_V_NEW, tensors.at(v1::TENSOR_ID_U));
    Send(stream, v1::TENSOR_ID_H, H());
    Send(stream, v1::TENSOR_ID_FINAL_STATE, FinalState());
    SendResponse(stream);
    return grpc::Status::OK;
  }

  void ExpectResults(const PrefillResult& result) const {
    EXPECT_EQ(Bytes(result.v_new), std::string(u_.begin(), u_.end()));
    EXPECT_EQ(Bytes(result.h), H());
    EXPECT_EQ(Bytes(result.final_state), FinalState());
    EXPECT_THAT(result.chunk_offsets, ElementsAre(0, boundaries()));
    EXPECT_THAT(result.positions, ElementsAre(tokens_));
    EXPECT_EQ(result.timing.compute, absl::Microseconds(42));
  }

  FakeServer server_;
  std::int64_t tokens_ = 0;
  std::vector<char> k_;
  std::vector<char> u_;
  std::vector<char> g_;
  std::vector<std::int64_t> slots_ = {3};
  absl::StatusOr<Session> session_ = absl::UnknownError("not open yet");
};

TEST_F(PrefillTest, SmallCallsAreUnary) {
  server_.prefill = [this](const v1::PrefillRequest& request, v1::PrefillResponse* response) {
    EXPECT_EQ(request.session(), "s");
    EXPECT_THAT(request.k().shape(), ElementsAre(100, kHeads, kDim));
    EXPECT_EQ(request.w().inline_(), std::string(k_.begin(), k_.end()));
    EXPECT_EQ(request.g().inline_(), std::string(g_.begin(), g_.end()));
    EXPECT_THAT(request.state_indices(), ElementsAre(3));
    EXPECT_TRUE(request.save_new_value());
    EXPECT_EQ(request.states().mode(), v1::StateSelection::MODE_ALL);
    return AnswerUnary(request, response);
  };
  const absl::StatusOr<PrefillResult> result = Prefill(Call(100));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kUnary);
  ExpectResults(*result);
}

TEST_F(PrefillTest, LargeCallsAreStreamed) {
  server_.prefill_stream = [this](grpc::ServerContext*, FakeServer::PrefillStream* stream) {
    v1::PrefillRequest request;
    const std::map<v1::TensorId, std::string> tensors = Receive(stream, &request);
    EXPECT_EQ(request.session(), "s");
    EXPECT_EQ(request.k().data_case(), v1::Tensor::DATA_NOT_SET);
    EXPECT_EQ(tensors.at(v1::TENSOR_ID_K), std::string(k_.begin(), k_.end()));
    EXPECT_EQ(tensors.at(v1::TENSOR_ID_W), std::string(k_.begin(), k_.end()));
    EXPECT_EQ(tensors.at(v1::TENSOR_ID_G), std::string(g_.begin(), g_.end()));
    Send(stream, v1::TENSOR_ID_V_NEW, tensors.at(v1::TENSOR_ID_U));
    Send(stream, v1::TENSOR_ID_H, H());
    Send(stream, v1::TENSOR_ID_FINAL_STATE, FinalState(), 1000);
    SendResponse(stream);
    return grpc::Status::OK;
  };
  const absl::StatusOr<PrefillResult> result = Prefill(Call(10'000));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kStream);
  ExpectResults(*result);
}

TEST_F(PrefillTest, ResultsOfAMegabyteChooseTheStreamToo) {
  server_.prefill_stream = [this](grpc::ServerContext*, FakeServer::PrefillStream* stream) {
    return AnswerStream(stream);
  };
  PrefillCall call = Call(64);
  call.chunk_size = 1;                                                    // 64 boundaries
  server_.Change([this] { tokens_ = 4096; });                             // as the server's answer has them
  EXPECT_EQ(Prefill(call).status().code(), absl::StatusCode::kInternal);  // v_new differs; streamed it was
}

TEST_F(PrefillTest, TheCallerChoosesTheTransport) {
  server_.prefill = [this](const v1::PrefillRequest& request, v1::PrefillResponse* response) {
    return AnswerUnary(request, response);
  };
  server_.prefill_stream = [this](grpc::ServerContext*, FakeServer::PrefillStream* stream) {
    return AnswerStream(stream);
  };
  PrefillCall call = Call(10'000);
  call.transport = Transport::kUnary;
  // The fake server takes messages of 4 MiB, as gRPC does by default.
  EXPECT_EQ(Prefill(call).status().code(), absl::StatusCode::kResourceExhausted);
  call = Call(2'500);
  call.transport = Transport::kUnary;
  absl::StatusOr<PrefillResult> result = Prefill(call);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kUnary);
  ExpectResults(*result);
  call = Call(1);
  call.transport = Transport::kStream;
  result = Prefill(call);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kStream);
  ExpectResults(*result);
}

TEST_F(PrefillTest, ResultsGoWhereTheCallerWantsThem) {
  server_.prefill = [this](const v1::PrefillRequest& request, v1::PrefillResponse* response) {
    return AnswerUnary(request, response);
  };
  server_.prefill_stream = [this](grpc::ServerContext*, FakeServer::PrefillStream* stream) {
    return AnswerStream(stream);
  };
  for (const Transport transport : {Transport::kUnary, Transport::kStream}) {
    PrefillCall call = Call(100);
    std::vector<char> v_new(u_.size() + 32, '.');
    call.transport = transport;
    call.outputs.v_new = Tensor{DataType::kBFloat16, {100 * kHeads * kDim}, v_new.data() + 16};
    const absl::StatusOr<PrefillResult> result = Prefill(call);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->v_new.data(), nullptr);
    EXPECT_EQ(Bytes(result->h), H());
    EXPECT_EQ(std::string(v_new.begin(), v_new.end()),
              std::string(16, '.') + std::string(u_.begin(), u_.end()) + std::string(16, '.'));
  }
}

TEST_F(PrefillTest, OutputsMustFitTheirResults) {
  std::vector<char> memory(1 << 20);
  PrefillCall call = Call(100);
  call.outputs.final_state = Tensor{DataType::kFloat32, {1, kHeads, kDim, kDim + 1}, memory.data()};
  absl::Status status = Prefill(call).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "outputs.final_state is float32 [1, 2, 64, 65]; the result is float32 [1, 2, 64, 64]");
  call.outputs.final_state = Tensor{DataType::kFloat32, {1, kHeads, kDim, kDim}, nullptr};
  EXPECT_THAT(std::string(Prefill(call).status().message()), HasSubstr("null pointer"));
  call.output_final_state = false;
  EXPECT_THAT(std::string(Prefill(call).status().message()),
              HasSubstr("outputs.final_state is given, but output_final_state is not set"));
}

TEST_F(PrefillTest, TheServersErrorArrivesWhileTheClientIsStillSending) {
  server_.prefill_stream = [](grpc::ServerContext*, FakeServer::PrefillStream* stream) {
    v1::PrefillFrame frame;
    stream->Read(&frame);
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "layer is 9; the cache has 1");
  };
  const absl::Status status = Prefill(Call(100'000)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "layer is 9; the cache has 1");
}

TEST_F(PrefillTest, AnExpiredCallLeavesTheCallersMemoryAlone) {
  // A server that reads nothing: the stream fills up, and gRPC holds slices of the tensors when the deadline passes.
  server_.prefill_stream = [](grpc::ServerContext* context, FakeServer::PrefillStream*) {
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  PrefillCall call = Call(100'000);
  const absl::Status status = Prefill(call, {.timeout = absl::Milliseconds(200)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  // Freed at once: the sanitizers would see a later access.
  std::vector<char>().swap(k_);
  std::vector<char>().swap(u_);
  std::vector<char>().swap(g_);
}

TEST_F(PrefillTest, ABrokenStreamIsAnErrorAndNothingIsOverrun) {
  using Stream = FakeServer::PrefillStream;
  struct Case {
    std::string message;
    std::function<void(Stream*)> answer;
  };
  const std::vector<Case> cases = {
      {"ended without a response", [](Stream*) {}},
      {"only 0 of the", [this](Stream* stream) { SendResponse(stream); }},
      {"h at offset 5 instead of 0",
       [](Stream* stream) {
         v1::PrefillFrame frame;
         frame.mutable_data()->set_tensor(v1::TENSOR_ID_H);
         frame.mutable_data()->set_offset(5);
         frame.mutable_data()->set_payload("x");
         stream->Write(frame);
       }},
      {"more were sent after", [this](Stream* stream) { Send(stream, v1::TENSOR_ID_H, H() + "x"); }},
      {"not asked for", [](Stream* stream) { Send(stream, v1::TENSOR_ID_K, "x"); }},
      {"neither data nor response", [](Stream* stream) { stream->Write(v1::PrefillFrame()); }},
      {"the shape [0, 2, 64, 64] instead of",
       [this](Stream* stream) {
         v1::PrefillFrame frame;
         FillHeader(frame.mutable_response());
         frame.mutable_response()->mutable_h()->set_shape(0, 0);
         stream->Write(frame);
       }},
      {"a frame after the response",
       [this](Stream* stream) {
         Send(stream, v1::TENSOR_ID_V_NEW, std::string(u_.begin(), u_.end()));
         Send(stream, v1::TENSOR_ID_H, H());
         Send(stream, v1::TENSOR_ID_FINAL_STATE, FinalState());
         SendResponse(stream);
         SendResponse(stream);
       }},
  };
  const Case* current = nullptr;
  server_.prefill_stream = [&current](grpc::ServerContext*, Stream* stream) {
    v1::PrefillRequest request;
    Receive(stream, &request);
    current->answer(stream);
    return grpc::Status::OK;
  };
  for (const Case& broken : cases) {
    PrefillCall call = Call(100);
    server_.Change([&] { current = &broken; });
    call.transport = Transport::kStream;
    std::vector<char> h(H().size() + 200, '.');
    call.outputs.h = Tensor{DataType::kBFloat16, {boundaries(), kHeads, kDim, kDim}, h.data() + 100};
    const absl::Status status = Prefill(call).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << broken.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(broken.message));
    EXPECT_EQ(std::string(h.begin(), h.begin() + 100), std::string(100, '.'));
    EXPECT_EQ(std::string(h.end() - 100, h.end()), std::string(100, '.'));
  }
}

TEST_F(PrefillTest, ABrokenUnaryAnswerIsAnErrorAndNothingIsOverrun) {
  const std::vector<std::function<void(v1::PrefillResponse*)>> changes = {
      [](v1::PrefillResponse* response) { response->mutable_h()->mutable_inline_()->append("x"); },
      [](v1::PrefillResponse* response) { response->mutable_h()->mutable_inline_()->pop_back(); },
      [](v1::PrefillResponse* response) { response->clear_h(); },
      [](v1::PrefillResponse* response) { response->mutable_h()->clear_data(); },
      [](v1::PrefillResponse* response) { response->mutable_v_new()->set_dtype(v1::DATA_TYPE_FLOAT32); },
      [](v1::PrefillResponse* response) { response->mutable_final_state()->add_shape(1); },
  };
  std::size_t current = 0;
  server_.prefill = [&](const v1::PrefillRequest& request, v1::PrefillResponse* response) {
    grpc::Status status = AnswerUnary(request, response);
    changes[current](response);
    return status;
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const PrefillCall call = Call(100);
    server_.Change([&] { current = i; });
    EXPECT_EQ(Prefill(call).status().code(), absl::StatusCode::kInternal) << i;
  }
  PrefillCall call = Call(100);
  call.output_final_state = false;  // and the server answers with it all the same
  server_.Change([&] { current = 0; });
  EXPECT_EQ(Prefill(call).status().code(), absl::StatusCode::kInternal);
}

TEST_F(PrefillTest, ThreadsMayCallAtOnce) {
  server_.prefill_stream = [this](grpc::ServerContext*, FakeServer::PrefillStream* stream) {
    return AnswerStream(stream);
  };
  PrefillCall call = Call(3'000);
  call.transport = Transport::kStream;
  Session& shared = session();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        const absl::StatusOr<PrefillResult> result = shared.Prefill(call);
        ASSERT_TRUE(result.ok()) << result.status();
        ExpectResults(*result);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gdpcache
