#include "tests/unit/rpc/served_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/string_view.h"
#include "server/rpc/prefill_codec.h"

namespace gdpcache::rpc {
namespace {

void SetTensor(const testing::HostTensor& from, v1::Tensor& to) {
  to.set_dtype(EncodeDataType(engine::ElementTypeOf(from.dtype)));
  to.mutable_shape()->Add(from.shape.begin(), from.shape.end());
  to.set_inline_(from.bytes.data(), from.bytes.size());
}

std::map<v1::TensorId, const v1::Tensor*> TensorsOf(const v1::PrefillRequest& request) {
  std::map<v1::TensorId, const v1::Tensor*> tensors = {
      {v1::TENSOR_ID_K, &request.k()}, {v1::TENSOR_ID_W, &request.w()}, {v1::TENSOR_ID_U, &request.u()}};
  if (request.has_g()) tensors[v1::TENSOR_ID_G] = &request.g();
  if (request.has_initial_state()) tensors[v1::TENSOR_ID_INITIAL_STATE] = &request.initial_state();
  if (request.has_auxiliary_state()) tensors[v1::TENSOR_ID_AUXILIARY] = &request.auxiliary_state();
  return tensors;
}

}  // namespace

ServedWorld::ServedWorld(const engine::EngineOptions& options) : World(options) {
  ServerOptions server_options;
  server_options.version = "test";
  server_options.listen = {"127.0.0.1:0"};
  server_options.max_message_bytes = std::int64_t{64} << 20;
  server_options.max_pin_ttl = absl::Hours(1);
  server_options.transfer_timeout = absl::Minutes(1);
  auto started = Server::Start(server_options, backend.device_info(), catalog, *engine, *store, thread, clock, metrics);
  EXPECT_TRUE(started.ok()) << started.status();
  server = *std::move(started);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  channel = grpc::CreateCustomChannel(server->addresses()[0], grpc::InsecureChannelCredentials(), arguments);
  stub = v1::StateCache::NewStub(channel);
}

ServedWorld::~ServedWorld() { EXPECT_TRUE(server->Shutdown(absl::Seconds(10)).ok()); }

std::unique_ptr<v1::StateCache::Stub> ServedWorld::StubWithSmallWindow() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // else the window grows with the traffic
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::StateCache::NewStub(
      grpc::CreateCustomChannel(server->addresses()[0], grpc::InsecureChannelCredentials(), arguments));
}

v1::PrefillRequest ToProto(const testing::Problem& problem, const std::string& session) {
  v1::PrefillRequest request;
  request.set_session(session);
  SetTensor(problem.k, *request.mutable_k());
  SetTensor(problem.w, *request.mutable_w());
  SetTensor(problem.u, *request.mutable_u());
  if (problem.g.present()) SetTensor(problem.g, *request.mutable_g());
  request.mutable_cu_seqlens()->Add(problem.cu_seqlens.begin(), problem.cu_seqlens.end());
  request.set_chunk_size(problem.shape.chunk_size);
  request.set_num_householder(problem.shape.num_householder);
  request.mutable_state_indices()->Add(problem.state_indices.begin(), problem.state_indices.end());
  switch (problem.initial) {
    case testing::InitialState::kSlot:
      request.set_initial_state_source(problem.state_indices.empty() ? v1::INITIAL_STATE_SOURCE_ZERO
                                                                     : v1::INITIAL_STATE_SOURCE_SLOT);
      break;
    case testing::InitialState::kZero:
      request.set_initial_state_source(v1::INITIAL_STATE_SOURCE_ZERO);
      break;
    case testing::InitialState::kTensor:
      request.set_initial_state_source(v1::INITIAL_STATE_SOURCE_TENSOR);
      SetTensor(problem.initial_state, *request.mutable_initial_state());
      break;
  }
  request.set_save_new_value(problem.save_new_value);
  request.set_output_final_state(problem.output_final_state);
  request.mutable_states()->set_mode(v1::StateSelection::MODE_ALL);
  request.set_states_dtype(EncodeDataType(engine::ElementTypeOf(problem.states_dtype)));
  return request;
}

std::vector<Upload> UploadsOf(const v1::PrefillRequest& inline_request) {
  std::vector<Upload> uploads;
  for (const auto& [id, tensor] : TensorsOf(inline_request)) uploads.push_back({id, &tensor->inline_(), 0});
  return uploads;
}

v1::PrefillFrame NextFrame(Upload& upload, std::size_t most) {
  v1::PrefillFrame frame;
  frame.mutable_data()->set_tensor(upload.id);
  frame.mutable_data()->set_offset(upload.sent);
  const std::string_view payload = std::string_view(*upload.bytes).substr(upload.sent, most);
  frame.mutable_data()->set_payload(payload.data(), payload.size());
  upload.sent += payload.size();
  return frame;
}

v1::PrefillFrame HeaderOf(const v1::PrefillRequest& inline_request) {
  v1::PrefillFrame frame;
  v1::PrefillRequest& request = *frame.mutable_request();
  request = inline_request;
  for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_w(), request.mutable_u()}) tensor->clear_inline_();
  if (request.has_g()) request.mutable_g()->clear_inline_();
  if (request.has_initial_state()) request.mutable_initial_state()->clear_inline_();
  if (request.has_auxiliary_state()) request.mutable_auxiliary_state()->clear_inline_();
  return frame;
}

Streamed ReadAll(Stream& stream) {
  Streamed streamed;
  std::map<std::int32_t, std::string> bytes;
  v1::PrefillFrame frame;
  while (stream.Read(&frame)) {
    EXPECT_FALSE(streamed.responded) << "a frame behind the response";
    if (frame.has_response()) {
      streamed.responded = true;
      streamed.response = frame.response();
      continue;
    }
    EXPECT_TRUE(frame.has_data());
    std::string& tensor = bytes[frame.data().tensor()];
    EXPECT_EQ(frame.data().offset(), tensor.size());
    tensor += frame.data().payload();
  }
  streamed.status = stream.Finish();
  if (streamed.responded) {
    v1::PrefillResponse& response = streamed.response;
    if (response.has_h()) response.mutable_h()->set_inline_(bytes[v1::TENSOR_ID_H]);
    if (response.has_v_new()) response.mutable_v_new()->set_inline_(bytes[v1::TENSOR_ID_V_NEW]);
    if (response.has_final_state()) response.mutable_final_state()->set_inline_(bytes[v1::TENSOR_ID_FINAL_STATE]);
  }
  return streamed;
}

Streamed RunStream(v1::StateCache::Stub& stub, const v1::PrefillRequest& inline_request, std::uint64_t seed,
                   double lead) {
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub.PrefillStream(&context);
  std::thread writer([&] {
    std::mt19937_64 random(seed);
    if (!stream->Write(HeaderOf(inline_request))) return;
    std::vector<Upload> uploads = UploadsOf(inline_request);
    const std::size_t most_bytes = std::size_t{1} << (random() % 21);  // 1 byte to 1 MiB
    const auto progress = [](const Upload& upload) {
      return upload.bytes->empty() ? 1.0 : static_cast<double>(upload.sent) / static_cast<double>(upload.bytes->size());
    };
    while (true) {
      double least = 1;
      std::size_t largest = 1;
      for (const Upload& upload : uploads) {
        least = std::min(least, progress(upload));
        largest = std::max(largest, upload.bytes->size());
      }
      if (least == 1) break;
      Upload& upload = uploads[random() % uploads.size()];
      if (upload.sent == upload.bytes->size() || progress(upload) > least + lead) continue;
      const std::size_t most = std::max(most_bytes, largest / 300);
      if (!stream->Write(NextFrame(upload, 1 + random() % most))) return;
    }
    stream->WritesDone();
  });
  Streamed streamed = ReadAll(*stream);
  writer.join();
  return streamed;
}

}  // namespace gdpcache::rpc
