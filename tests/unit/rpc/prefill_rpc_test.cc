#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gdpcache/v1/prefill.pb.h"
#include "google/rpc/error_details.pb.h"
#include "tests/golden/golden_batch.h"
#include "tests/reference/random_problem.h"
#include "tests/support/eventually.h"
#include "tests/support/status_details.h"
#include "tests/unit/kernels/problem_runner.h"
#include "tests/unit/rpc/large_prefill.h"
#include "tests/unit/rpc/served_world.h"

namespace gdpcache::rpc {
namespace {

using engine::Fingerprint;
using engine::GeometryOf;
using engine::LoadState;
using engine::StoreState;
using test::Eventually;
using testing::Outputs;
using testing::Problem;

/// Through the server, unary and as a stream, every bit as from the kernel alone.
void ExpectSameAsAlone(ServedWorld& world, const Problem& problem, std::uint64_t seed) {
  const Outputs alone = testing::RunProblem(*world.cpu, problem);
  for (const bool streamed : {false, true}) {
    SCOPED_TRACE(streamed ? "streamed" : "unary");
    const auto session = world.OpenSession(GeometryOf(problem));
    if (problem.state.present()) LoadState(*session->cache(), 0, problem.state);
    const v1::PrefillRequest request = ToProto(problem, session->id());
    v1::PrefillResponse response;
    if (streamed) {
      const Streamed answer = RunStream(*world.stub, request, seed);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      response = answer.response;
    } else {
      grpc::ClientContext context;
      const grpc::Status status = world.stub->Prefill(&context, request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
    ExpectResponse(response, alone);
    if (problem.state.present()) {
      EXPECT_TRUE(StoreState(*session->cache(), 0).bytes == alone.state.bytes);
    }
    ASSERT_EQ(response.positions_size(), problem.sequences());
    ASSERT_EQ(response.chunk_offsets_size(), problem.sequences() + 1);
  }
}

TEST(PrefillRpc, GoldenBatchesUnaryAndStreamedEqualTheKernelBitForBit) {
  ServedWorld world({.segment_bytes = 200'000});
  for (const std::string& name : testing::GoldenBatchNames()) {
    SCOPED_TRACE(name);
    const auto batch = testing::LoadGoldenBatch(name);
    ASSERT_TRUE(batch.ok()) << batch.status();
    ExpectSameAsAlone(world, batch->problem, 1);
  }
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
}

TEST(PrefillRpc, RandomFramesOfRandomProblemsEqualTheKernelBitForBit) {
  ServedWorld world({.segment_bytes = 5'000});
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    ExpectSameAsAlone(world, testing::RandomSmallProblem(seed), seed);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PrefillRpc, ALargeStreamInManySegmentsEqualsTheKernelBitForBit) {
  ServedWorld world(kSmallSegments);
  const std::int64_t before = world.backend.calls(engine::Operation::kRunRecurrence);
  ExpectSameAsAlone(world, LargeProblem(), 3);
  EXPECT_GT(world.backend.calls(engine::Operation::kRunRecurrence), before + 10);
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
}

TEST(PrefillRpc, UnknownTensorsAndThoseNotInTheHeaderAreRefused) {
  ServedWorld world(kSmallSegments);
  Problem problem = LargeProblem();
  problem.g = {};
  const auto session = world.OpenSession(GeometryOf(problem));
  for (const int tensor : {0, 4, 5, 16, 33, 99, -1}) {
    SCOPED_TRACE(tensor);
    const v1::PrefillRequest request = ToProto(problem, session->id());
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
    ASSERT_TRUE(stream->Write(HeaderOf(request)));
    v1::PrefillFrame frame;
    frame.mutable_data()->set_tensor(static_cast<v1::TensorId>(tensor));
    frame.mutable_data()->set_payload("x");
    stream->Write(frame);
    const Streamed answer = ReadAll(*stream);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(answer.status.error_message(), ::testing::HasSubstr("data.tensor"));
  }
}

TEST(PrefillRpc, WhatARequestTakesBesidesItsTensorsIsChargedToTheStagingMemory) {
  ServedWorld world({.staging_bytes = std::int64_t{8} << 20});
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  v1::PrefillRequest request = ToProto(problem, session->id());
  request.set_request_id(std::string(9 << 20, 'x'));
  v1::PrefillResponse response;
  grpc::ClientContext unary;
  const grpc::Status refused = world.stub->Prefill(&unary, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_EQ(RunStream(*world.stub, request, 1).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  // What nobody knows is not kept.
  request.clear_request_id();
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(1'000, std::string(9 << 20, 'x'));
  grpc::ClientContext with_unknown;
  EXPECT_TRUE(world.stub->Prefill(&with_unknown, request, &response).ok());
  EXPECT_TRUE(RunStream(*world.stub, request, 2).status.ok());
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
}

TEST(PrefillRpc, EveryFrameRenewsTheLease) {
  ServedWorld world(kSmallSegments);
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  const v1::PrefillRequest request = ToProto(problem, session->id());
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
  ASSERT_TRUE(stream->Write(HeaderOf(request)));
  for (Upload& upload : UploadsOf(request)) {
    const absl::Time expires = session->expires_at();
    world.clock.Advance(absl::Seconds(50));
    ASSERT_TRUE(stream->Write(NextFrame(upload, 1000)));
    EXPECT_TRUE(Eventually([&] { return session->expires_at() > expires; }));
    world.catalog.ExpireSessions();
  }
  context.TryCancel();
  stream->Finish();
  EXPECT_TRUE(world.catalog.FindSession(session->id(), cache::kDefaultTenant).ok());
}

TEST(PrefillRpc, PositionMismatchesCarryTheActualPositions) {
  ServedWorld world;
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  session->cache()->slots().SetPosition(0, 0, 77);
  v1::PrefillRequest request = ToProto(problem, session->id());
  for (const std::int64_t position : {-1, 5, 0, 9}) request.add_expected_positions(position);
  grpc::ClientContext context;
  v1::PrefillResponse response;
  const grpc::Status unary = world.stub->Prefill(&context, request, &response);
  for (const grpc::Status& status : {unary, RunStream(*world.stub, request, 1).status}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    const auto mismatch = test::DetailOf<v1::PositionMismatch>(status);
    ASSERT_EQ(mismatch.slots_size(), 1);
    EXPECT_EQ(mismatch.slots(0).sequence(), 1);
    EXPECT_EQ(mismatch.slots(0).slot(), 0);
    EXPECT_EQ(mismatch.slots(0).expected(), 5);
    EXPECT_EQ(mismatch.slots(0).actual(), 77);
  }
}

TEST(PrefillRpc, UnknownEnumValuesAreRefused) {
  ServedWorld world;
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  const v1::PrefillRequest good = ToProto(problem, session->id());
  const auto expect = [&](const std::string& field, const std::function<void(v1::PrefillRequest&)>& spoil) {
    v1::PrefillRequest request = good;
    spoil(request);
    grpc::ClientContext context;
    v1::PrefillResponse response;
    const grpc::Status status = world.stub->Prefill(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(test::DetailOf<google::rpc::BadRequest>(status).field_violations(0).field(), field);
  };
  expect("k.dtype", [](auto& request) { request.mutable_k()->set_dtype(static_cast<v1::DataType>(50)); });
  expect("g.dtype", [](auto& request) { request.mutable_g()->set_dtype(static_cast<v1::DataType>(-1)); });
  expect("g_base", [](auto& request) { request.set_g_base(static_cast<v1::DecayBase>(3)); });
  expect("initial_state_source",
         [](auto& request) { request.set_initial_state_source(static_cast<v1::InitialStateSource>(9)); });
  expect("states.mode",
         [](auto& request) { request.mutable_states()->set_mode(static_cast<v1::StateSelection::Mode>(4)); });
  expect("states_dtype", [](auto& request) { request.set_states_dtype(static_cast<v1::DataType>(5)); });
  expect("precision", [](auto& request) { request.set_precision(static_cast<v1::Precision>(2)); });
  expect("request_id", [](auto& request) { request.set_request_id(std::string(129, 'x')); });
  expect("k.inline", [](auto& request) { request.mutable_k()->mutable_inline_()->pop_back(); });
  expect("u.inline", [](auto& request) { request.mutable_u()->mutable_inline_()->push_back('x'); });
}

TEST(PrefillRpc, ManyClientsCancellingAtAnyMomentLeaveNothingBehind) {
  ServedWorld world(kSmallSegments);
  const Problem problem = LargeProblem();
  const auto session = world.OpenSession(GeometryOf(problem));
  LoadState(*session->cache(), 0, problem.state);
  const v1::PrefillRequest request = ToProto(problem, session->id());
  const std::size_t before = Fingerprint(*session->cache());
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      std::mt19937_64 random(i);
      for (int round = 0; round < 10; ++round) {
        grpc::ClientContext context;
        const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
        std::vector<Upload> uploads = UploadsOf(request);
        const std::int64_t frames = static_cast<std::int64_t>(random() % 150);
        bool sent = stream->Write(HeaderOf(request));
        // Never all of it, so that none can commit.
        for (std::int64_t frame = 0; sent && frame < frames; ++frame) {
          Upload& upload = uploads[frame % uploads.size()];
          sent = stream->Write(NextFrame(upload, upload.bytes->size() / 60));
        }
        context.TryCancel();
        stream->Finish();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(Eventually([&] { return world.engine->staging().used() == 0; }));
  EXPECT_EQ(Fingerprint(*session->cache()), before);
  grpc::ClientContext context;
  v1::PrefillResponse response;
  ASSERT_TRUE(world.stub->Prefill(&context, request, &response).ok());
  ExpectResponse(response, testing::RunProblem(*world.cpu, problem));
}

TEST(PrefillRpc, TensorsOfMoreThanTwoGiBPassThroughTheStreamInLittleMemory) {
  constexpr std::int64_t kStaging = std::int64_t{128} << 20;
  ServedWorld world({.staging_bytes = kStaging});
  constexpr std::int64_t kRows = 2'150'000;
  const auto session =
      world.OpenSession({.layers = 1, .slots = 1, .heads = 1, .key_dim = 256, .value_dim = 8, .num_householder = 1});
  v1::PrefillFrame header;
  v1::PrefillRequest& request = *header.mutable_request();
  request.set_session(session->id());
  for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_w(), request.mutable_u()}) {
    tensor->set_dtype(v1::DATA_TYPE_BFLOAT16);
    for (const std::int64_t size : {kRows, std::int64_t{1}, std::int64_t{256}}) tensor->add_shape(size);
  }
  request.mutable_u()->set_shape(2, 8);
  request.add_state_indices(0);
  request.set_save_new_value(true);
  request.set_chunk_size(128);
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = world.stub->PrefillStream(&context);
  std::thread writer([&] {
    ASSERT_TRUE(stream->Write(header));
    constexpr std::int64_t kStep = 2'000;
    v1::PrefillFrame frame;
    for (std::int64_t row = 0; row < kRows; row += kStep) {
      const std::int64_t rows = std::min(kStep, kRows - row);
      for (const auto& [id, width] :
           {std::pair(v1::TENSOR_ID_K, 512), std::pair(v1::TENSOR_ID_W, 512), std::pair(v1::TENSOR_ID_U, 16)}) {
        frame.mutable_data()->set_tensor(id);
        frame.mutable_data()->set_offset(row * width);
        frame.mutable_data()->mutable_payload()->resize(rows * width);
        ASSERT_TRUE(stream->Write(frame));
      }
    }
    stream->WritesDone();
  });
  v1::PrefillFrame frame;
  std::int64_t received = 0;
  std::int64_t most_used = 0;
  bool responded = false;
  while (stream->Read(&frame)) {
    if (frame.has_data()) received += static_cast<std::int64_t>(frame.data().payload().size());
    responded |= frame.has_response();
    most_used = std::max(most_used, world.engine->staging().used());
  }
  writer.join();
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(responded);
  EXPECT_EQ(received, kRows * 16);
  EXPECT_LE(most_used, kStaging);
  EXPECT_EQ(session->cache()->slots().Position(0, 0), kRows);
}

}  // namespace
}  // namespace gdpcache::rpc
